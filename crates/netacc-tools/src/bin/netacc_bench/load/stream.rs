//! One connection, as many bytes as go through.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use netacc_tools::bench_wire::Job;

use super::{Load, Watch, lost, open, wrong};
use crate::pattern::Pattern;
use crate::worker::{Measured, Task, Times};

pub(crate) struct Stream {
    task: Task,
    stream: TcpStream,
    source: Source,
}

/// What is written.
enum Source {
    /// The same block again and again.
    Same(Vec<u8>),
    /// Bytes which the server knows.
    Pattern(Pattern),
}

impl Source {
    fn open(&self, task: &Task) -> Result<TcpStream, String> {
        open(task, if matches!(self, Self::Same(_)) { Job::Count } else { Job::Compare })
    }

    fn block(&self, position: u64, length: usize) -> &[u8] {
        match self {
            Self::Same(block) => block,
            Self::Pattern(pattern) => pattern.at(position, length),
        }
    }
}

impl Stream {
    pub(crate) fn open(task: &Task) -> Result<Self, String> {
        let block = task.request as usize;
        let source = if task.verify { Source::Pattern(Pattern::new(block)) } else { Source::Same(vec![0x33; block]) };
        Ok(Self { task: task.clone(), stream: source.open(task)?, source })
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
            let block = self.source.block(sent, self.task.request as usize);
            self.stream.write_all(block).map_err(|error| lost(&self.task, &error))?;
            sent += block.len() as u64;
            writes += 1;
        }
        let bytes = self.counted()?;
        let measured = watch.done(&times);
        match (bytes == sent, &self.source) {
            (true, _) => Ok(Measured { operations: writes, bytes, ..measured }),
            (false, Source::Same(_)) => Err(wrong(&self.task)),
            (false, Source::Pattern(_)) => Err(format!(
                "of {sent} bytes to {} the one at {bytes} arrived as another one, or not at all",
                self.task.to
            )),
        }
    }

    fn renew(&mut self) -> Result<(), String> {
        self.stream = self.source.open(&self.task)?;
        Ok(())
    }

    fn connections(&self) -> u64 {
        1
    }
}
