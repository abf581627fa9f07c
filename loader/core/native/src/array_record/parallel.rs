//! Chunks on the core's threads: what a thread works with, and what becomes of its failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::codecs::Zstd;
use super::damage::Damage;
use crate::guard;
use crate::pool::{self, KEPT_BYTES};

/// Why a chunk was not read.
#[derive(Debug)]
pub enum Failure {
    Damage(Damage),
    File(std::io::Error),
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// What one thread works with.
pub struct Workspace {
    pub zstd: Zstd,
    /// Stored bytes.
    pub raw: Vec<u8>,
    /// The same without block headers.
    pub joined: Vec<u8>,
    /// Sizes of records, and records, while a chunk is decoded.
    pub values: Vec<u8>,
    /// Records that are not given out.
    pub spare: Vec<u8>,
}

impl Workspace {
    pub fn new() -> Self {
        let [raw, joined, values, spare] = [const { Vec::new() }; 4];
        Self { zstd: Zstd::new(), raw, joined, values, spare }
    }

    /// Gives large memory back to the system.
    pub fn give_back(&mut self) {
        for bytes in [&mut self.raw, &mut self.joined, &mut self.values, &mut self.spare] {
            if bytes.capacity() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
    }
}

/// Does `work` for the numbers below `count`, here and on the core's threads, `grain` at a time.
///
/// The failure with the lowest number is given; higher numbers may then be left out. Other threads of
/// the interpreter run meanwhile.
pub fn each<E: Send>(
    py: Python<'_>,
    count: usize,
    grain: usize,
    work: impl Fn(usize, &mut Workspace) -> Result<(), E> + Sync,
) -> PyResult<Result<(), E>> {
    let failed: Mutex<Option<E>> = Mutex::new(None);
    let lowest = AtomicUsize::new(usize::MAX);
    pool::each_with(py, (count, grain), |number, scratch| {
        if number > lowest.load(Ordering::Relaxed) {
            return;
        }
        if let Err(failure) = work(number, &mut scratch.records) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if number < lowest.fetch_min(number, Ordering::Relaxed) {
                *failed = Some(failure);
            }
        }
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err))
}

/// A panic in a codec, which has met bytes that its author did not think of, is damage.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let why = format!("it cannot be decoded: {}", guard::message(&*panic));
        Err(Failure::Damage(Damage(why)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        Python::attach(|py| {
            for (count, grain) in [(0, 1), (1, 8), (1000, 7), (10, 100)] {
                let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                let done: Result<(), ()> = each(py, count, grain, |number, _| {
                    seen[number].fetch_add(1, Ordering::Relaxed);
                    Ok(())
                })
                .unwrap();
                assert!(done.is_ok());
                assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
            }
        });
    }

    #[test]
    fn the_lowest_failure_is_given_and_panics_are_damage() {
        Python::attach(|py| {
            let found = each(py, 1000, 3, |number, _| {
                let work = || if number == 100 { panic!("early") } else { Ok(()) };
                caught(work).map_err(|_| number)?;
                if number < 500 { Ok(()) } else { Err(number) }
            });
            assert_eq!(found.unwrap(), Err(100));
        });
    }
}
