//! One connection, as many bytes as go through.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::Job;

use super::{Load, Watch, lost, open, wrong};
use crate::worker::{Measured, Task, Times};

pub(crate) struct Stream {
    task: Task,
    stream: TcpStream,
    block: Vec<u8>,
}

impl Stream {
    pub(crate) fn open(task: &Task) -> Result<Self, String> {
        Ok(Self { task: task.clone(), stream: open(task, Job::Count)?, block: vec![0x33; task.request as usize] })
    }

    /// The server says how many bytes it has got: what still lies in a buffer is not measured as sent.
    fn counted(&mut self) -> Result<u64, String> {
        let mut count = [0; 8];
        self.stream
            .shutdown(Shutdown::Write)
            .and_then(|()| self.stream.read_exact(&mut count))
            .map_err(|error| lost(&self.task, &error))?;
        Ok(u64::from_be_bytes(count))
    }
}

impl Load for Stream {
    fn measure(&mut self, time: Duration) -> Result<Measured, String> {
        let mut sent = 0;
        let mut writes = 0;
        let times = Times::new()?;
        let watch = Watch::start();
        let end = watch.start + time;
        while Instant::now() < end {
            self.stream.write_all(&self.block).map_err(|error| lost(&self.task, &error))?;
            sent += self.block.len() as u64;
            writes += 1;
        }
        let bytes = self.counted()?;
        let measured = watch.done(&times);
        if bytes == sent { Ok(Measured { operations: writes, bytes, ..measured }) } else { Err(wrong(&self.task)) }
    }

    fn renew(&mut self) -> Result<(), String> {
        self.stream = open(&self.task, Job::Count)?;
        Ok(())
    }

    fn connections(&self) -> u64 {
        1
    }
}
