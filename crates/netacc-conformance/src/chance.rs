//! Choices that follow from a seed, so that a failure can be had again.

use std::sync::OnceLock;

/// The environment variable that sets the seed.
pub const VARIABLE: &str = "NETACC_SEED";

/// The seed of this process: that of the environment, or a new one. The first call prints it, and a test's output is
/// shown only if the test fails.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let given = std::env::var(VARIABLE).ok().map(|text| text.parse().expect("the seed is a number"));
        let seed = given.unwrap_or_else(|| netacc_sys::time::now() ^ u64::from(std::process::id()) << 32);
        eprintln!("{VARIABLE}={seed}");
        seed
    })
}

/// A sequence of choices.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of that name for this process' seed. Every test has a name of its own, so that it chooses the same
    /// whichever tests run beside it.
    pub fn of(name: &str) -> Chance {
        let seed = seed();
        eprintln!("{name}: {VARIABLE}={seed}");
        // FNV-1a.
        Chance(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        netacc_fabric::chance::next(&mut self.0)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// Whether one case in `n` has come.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
