//! Work on threads without the interpreter's lock, and what each thread needs for it.
//!
//! Threads live for one call, so a forked child or an interpreter that ends has none of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::codecs::Zstd;
use super::damage::Damage;
use crate::guard;

/// Memory that a thread keeps for its next call is not more than this.
const KEPT_BYTES: usize = 16 << 20;
/// Threads that are kept ready have as many of these at most.
const KEPT: usize = 64;

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
    /// Bytes in memory.
    pub values: Vec<u8>,
}

static KEPT_WORKSPACES: Mutex<Vec<Workspace>> = Mutex::new(Vec::new());

impl Workspace {
    pub fn take() -> Self {
        // In a forked child the lock may be held for ever, so nobody waits for it.
        let kept = KEPT_WORKSPACES.try_lock().ok().and_then(|mut kept| kept.pop());
        kept.unwrap_or_else(|| Self { zstd: Zstd::new(), raw: Vec::new(), values: Vec::new() })
    }

    pub fn keep(mut self) {
        for bytes in [&mut self.raw, &mut self.values] {
            if bytes.capacity() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
        if let Ok(mut kept) = KEPT_WORKSPACES.try_lock()
            && kept.len() < KEPT
        {
            kept.push(self);
        }
    }
}

/// Does `work` for the numbers below `count`, `grain` neighbours at a time, on `threads` threads.
///
/// The failure with the lowest number is given; higher numbers may then be left out.
pub fn each<E: Send>(
    count: usize,
    grain: usize,
    threads: usize,
    work: impl Fn(usize, &mut Workspace) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<E>> = Mutex::new(None);
    let lowest = AtomicUsize::new(usize::MAX);
    let run = || {
        let mut space = Workspace::take();
        loop {
            let begin = next.fetch_add(grain, Ordering::Relaxed);
            if begin >= count.min(lowest.load(Ordering::Relaxed)) {
                break;
            }
            for number in begin..count.min(begin + grain) {
                if let Err(failure) = work(number, &mut space) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    if number < lowest.fetch_min(number, Ordering::Relaxed) {
                        *failed = Some(failure);
                    }
                    break;
                }
            }
        }
        space.keep();
    };
    let more = threads.min(count.div_ceil(grain)).saturating_sub(1);
    thread::scope(|scope| {
        for _ in 0..more {
            // Without another thread this one does it all.
            let _ = thread::Builder::new().name("windrow-records".into()).spawn_scoped(scope, run);
        }
        run();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A panic in a codec, which has met bytes that its author did not think of, is damage.
pub fn caught(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let why = format!("it cannot be decoded: {}", guard::message(&*panic));
        Err(Failure::Damage(Damage(why)))
    })
}

/// The cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_once() {
        for (count, grain, threads) in [(0, 1, 2), (1, 8, 2), (1000, 7, 3), (10, 100, 4)] {
            let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            let done: Result<(), ()> = each(count, grain, threads, |number, _| {
                seen[number].fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            assert!(done.is_ok());
            assert!(seen.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn the_lowest_failure_is_given_and_panics_are_damage() {
        let found = each(1000, 3, 2, |number, _| {
            let work = || if number == 100 { panic!("early") } else { Ok(()) };
            caught(work).map_err(|_| number)?;
            if number < 500 { Ok(()) } else { Err(number) }
        });
        assert_eq!(found, Err(100));
    }
}
