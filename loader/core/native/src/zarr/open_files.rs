//! Files that stay open, over all arrays, and the most of them that may.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The largest share of the files that the process may open.
const SHARE: usize = 4;
const MOST: usize = 4096;
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// The right to keep one file open, until it is dropped.
pub struct Place(());

impl Place {
    /// None if as many files are open as may be.
    pub fn take() -> Option<Place> {
        let most = most();
        let added = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < most).then_some(open + 1)
        });
        added.is_ok().then(|| Place(()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The most files that stay open: a share of those that the process may open.
fn most() -> usize {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: `limit` has room for the answer, and zeros are one.
    let limit = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr());
        limit.assume_init()
    };
    let most = usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX);
    (most / SHARE).min(MOST)
}

/// A file that stays open.
pub struct Kept {
    pub file: File,
    /// Its size when it was opened.
    pub bytes: usize,
    _place: Place,
}

/// The files of one array that stay open, by number. None is closed for another one: in a random order
/// over more files than may be open, each is then found with the same chance.
#[derive(Default)]
pub struct OpenFiles {
    held: Mutex<HashMap<u64, Arc<Kept>>>,
}

impl OpenFiles {
    pub fn find(&self, number: u64) -> Option<Arc<Kept>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Keeps a file of `bytes` bytes; gives it back if no more files may stay open.
    pub fn keep(&self, number: u64, file: File, bytes: usize) -> Result<Arc<Kept>, File> {
        let Some(place) = Place::take() else { return Err(file) };
        let kept = Arc::new(Kept { file, bytes, _place: place });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.insert(number, Arc::clone(&kept));
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let files = OpenFiles::default();
        let before = OPEN.load(Ordering::Relaxed);
        let kept = files.keep(7, File::open("/dev/null").unwrap(), 3).ok().unwrap();
        assert_eq!(files.find(7).unwrap().bytes, 3);
        assert!(files.find(8).is_none());
        drop((files, kept));
        assert_eq!(OPEN.load(Ordering::Relaxed), before);
        assert!((1..=MOST).contains(&most()));
    }
}
