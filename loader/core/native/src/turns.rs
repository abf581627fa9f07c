//! Who is served next: the work of an owner is begun in its order, and owners take turns.
//!
//! An owner is a thread that submits work. As each iterator has a thread that prefetches for it, several
//! iterators share the threads of the pool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::pool::Work;

/// How long a thread works for one owner while others wait, unless a task takes longer.
const TURN: Duration = Duration::from_millis(1);

/// Work that one thread has submitted.
struct Owner {
    id: ThreadId,
    /// The oldest comes first: it is what the owner waits for.
    works: VecDeque<Arc<Work>>,
}

impl Owner {
    /// The oldest work that has tasks to begin.
    fn oldest(&mut self) -> Option<Arc<Work>> {
        while let Some(work) = self.works.front() {
            if work.has_tasks() {
                return Some(Arc::clone(work));
            }
            self.works.pop_front();
        }
        None
    }
}

/// When a thread of the pool began to work for an owner.
pub struct Turn {
    owner: ThreadId,
    begun: Instant,
}

impl Turn {
    pub fn is_over(&self) -> bool {
        self.begun.elapsed() >= TURN
    }
}

/// Work that has tasks to begin, or had.
#[derive(Default)]
pub struct Waiting {
    /// The one to be served next comes first.
    owners: VecDeque<Owner>,
}

impl Waiting {
    /// Whether several owners may have work.
    pub fn is_shared(&self) -> bool {
        self.owners.len() > 1
    }

    pub fn put(&mut self, id: ThreadId, work: Arc<Work>) {
        match self.owners.iter_mut().find(|owner| owner.id == id) {
            Some(owner) => owner.works.push_back(work),
            None => self.owners.push_back(Owner { id, works: VecDeque::from([work]) }),
        }
    }

    /// Work for a thread whose last turn was `turn`, which goes on until it is over.
    pub fn take(&mut self, turn: &mut Option<Turn>) -> Option<Arc<Work>> {
        if let Some(turn) = turn.as_ref().filter(|turn| !turn.is_over())
            && let Some(owner) = self.owners.iter_mut().find(|owner| owner.id == turn.owner)
            && let Some(work) = owner.oldest()
        {
            return Some(work);
        }
        while let Some(mut owner) = self.owners.pop_front() {
            if let Some(work) = owner.oldest() {
                *turn = Some(Turn { owner: owner.id, begun: Instant::now() });
                self.owners.push_back(owner);
                return Some(work);
            }
        }
        None
    }
}
