//! What the configuration means for one engine.

use crate::rdma::Sizes;
use crate::rdma::engine::admission::Bounds;
use netacc_conf::Config;
use netacc_sys::time;

/// What the configuration says.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub msg_size: usize,
    pub conn_per_qp: usize,
    pub first_region: usize,
    pub largest_region: usize,
    pub comp_vector: u32,
    pub poll_ns: u64,
    pub idle_ns: Option<u64>,
    pub idle_all: usize,
    pub idle_per: usize,
    pub tcp_companion: bool,
    pub silent: Bounds,
}

/// Largest number of queue pairs of clients that have sent no message yet, in the whole process.
const SILENT: Bounds = Bounds { per_address: 64, all: 256 };
/// Number of such queue pairs of one address that an engine may have whatever its share is: a client's host makes
/// several at a time.
const SILENT_LEAST: usize = 4;

/// What engine `index` of `engines` may have if all together may have `all`.
fn share(all: usize, engines: u32, index: usize) -> usize {
    let engines = engines.max(1) as usize;
    all / engines + usize::from(index < all % engines)
}

impl Limits {
    /// The limits of engine `index`.
    pub fn new(conf: &Config, index: usize) -> Limits {
        Limits {
            msg_size: conf.msg_size as usize,
            conn_per_qp: conf.conn_per_qp as usize,
            first_region: conf.mr_min_inc_size as usize,
            largest_region: conf.mr_max_inc_size as usize,
            comp_vector: conf.comp_vector,
            poll_ns: u64::from(conf.poll_cq_ms) * 1_000_000,
            idle_ns: conf.empty_qp_expire().map(time::ns),
            idle_all: share(conf.empty_qp_max_all as usize, conf.io_threads, index),
            idle_per: share(conf.empty_qp_max_per as usize, conf.io_threads, index),
            // A user who wants fast connects does not want a second connection beside each queue pair.
            tcp_companion: conf.tcp_companion && !conf.fast_connect,
            silent: Bounds {
                per_address: share(SILENT.per_address, conf.io_threads, index).max(SILENT_LEAST),
                all: share(SILENT.all, conf.io_threads, index).max(SILENT_LEAST),
            },
        }
    }

    /// The sizes of buffers and regions.
    pub fn sizes(&self) -> Sizes {
        Sizes { message: self.msg_size, first: self.first_region, largest: self.largest_region }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn shares_add_up() {
        for (all, engines) in [(0, 1), (10, 1), (10, 4), (3, 4), (100, 64), (65535, 7)] {
            let shares: Vec<usize> = (0..engines as usize).map(|n| share(all, engines, n)).collect();
            assert_eq!(shares.iter().sum::<usize>(), all);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1 && shares[0] == *most, "{shares:?}");
        }
    }
}
