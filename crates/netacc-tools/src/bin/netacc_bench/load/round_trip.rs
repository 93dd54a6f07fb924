//! One message there and back, then the next one.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::Job;

use super::{Exchange, Load, Watch, lost, open};
use crate::waiter::Waiter;
use crate::worker::{Measured, Task, Times};

pub(crate) struct RoundTrip {
    task: Task,
    stream: TcpStream,
    waiter: Waiter,
    exchange: Exchange,
}

impl RoundTrip {
    pub(crate) fn open(task: &Task) -> Result<Self, String> {
        let stream = open(task, Job::Answer)?;
        let waiter = Waiter::new(task.waiting, &stream).map_err(|error| lost(task, &error))?;
        Ok(Self { task: task.clone(), stream, waiter, exchange: Exchange::new(task) })
    }
}

impl Load for RoundTrip {
    fn measure(&mut self, time: Duration) -> Result<Measured, String> {
        let mut times = Times::new()?;
        let watch = Watch::start();
        // The end of one is the beginning of the next: one reading of the clock each.
        let mut last = watch.start;
        while last.duration_since(watch.start) < time {
            self.exchange.once(&mut self.stream, &self.waiter, &self.task)?;
            let now = Instant::now();
            times.add(now.duration_since(last));
            last = now;
        }
        Ok(watch.done(&times))
    }

    fn connections(&self) -> u64 {
        1
    }
}
