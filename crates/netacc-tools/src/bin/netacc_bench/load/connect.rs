//! A connection, one round trip, an end; then the next one.
//!
//! The server closes first, as with HTTP/1.0: so it is the server's side that stays in TIME_WAIT, and a client does not
//! run out of ports.

use std::io::Read;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::Job;

use super::{Exchange, Load, Watch, lost, open, wrong};
use crate::page::{self, Paths};
use crate::waiter::Waiter;
use crate::worker::{Measured, Task, Times};

pub(crate) struct Connect {
    task: Task,
    exchange: Exchange,
    made: u64,
}

impl Connect {
    pub(crate) fn open(task: &Task) -> Self {
        Self { task: task.clone(), exchange: Exchange::new(task), made: 0 }
    }

    fn once(&mut self) -> Result<(), String> {
        let mut stream = open(&self.task, Job::AnswerOnce)?;
        self.exchange.once(&mut stream, &Waiter::Recv, &self.task)?;
        self.made += 1;
        match stream.read(&mut [0; 1]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(wrong(&self.task)),
            Err(error) => Err(lost(&self.task, &error)),
        }
    }
}

impl Load for Connect {
    fn measure(&mut self, time: Duration) -> Result<Measured, String> {
        let mut times = Times::new()?;
        let watch = Watch::start();
        let mut last = watch.start;
        while last.duration_since(watch.start) < time {
            self.once()?;
            let now = Instant::now();
            times.add(now.duration_since(last));
            last = now;
        }
        Ok(watch.done(&times))
    }

    fn connections(&self) -> u64 {
        self.made
    }

    /// None of them is open any more: counters say how many were accelerated, one more connection says over what.
    fn paths(&mut self, port: u16) -> Result<Paths, String> {
        let mut paths = page::made(self.made);
        let mut stream = open(&self.task, Job::AnswerOnce)?;
        let now = page::open_to(port, 1);
        self.exchange.once(&mut stream, &Waiter::Recv, &self.task)?;
        if now.rdma > 0 {
            (paths.rdma, paths.shm) = (paths.rdma + paths.shm, 0);
        }
        Ok(paths)
    }
}
