//! A job after the other on several threads, and their results in the order of the jobs. The calling thread leads: it makes
//! the jobs, takes the results, and works on a job itself where it would wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

struct Queue<J, R> {
    waiting: VecDeque<(u64, J)>,
    finished: BTreeMap<u64, R>,
    /// No thread begins another job.
    closed: bool,
    /// A thread panicked; its result never comes.
    failed: bool,
}

struct Shared<J, R> {
    queue: Mutex<Queue<J, R>>,
    /// There is a job, or no more.
    work: Condvar,
    /// There is a result, or one that never comes.
    done: Condvar,
}

impl<J, R> Shared<J, R> {
    /// Nothing panics while it holds the lock, so a poisoned one is as good.
    fn queue(&self) -> MutexGuard<'_, Queue<J, R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the threads when the leader is through, also by an error or a panic.
struct Closer<'a, J, R>(&'a Shared<J, R>);

impl<J, R> Drop for Closer<'_, J, R> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.closed = true;
        queue.waiting.clear();
        drop(queue);
        self.0.work.notify_all();
    }
}

/// Tells the leader when a thread panics.
struct Alarm<'a, J, R>(&'a Shared<J, R>);

impl<J, R> Drop for Alarm<'_, J, R> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.queue().failed = true;
            self.0.done.notify_all();
        }
    }
}

/// The leader's end.
pub struct Line<'a, J, R, W> {
    shared: &'a Shared<J, R>,
    work: &'a dyn Fn(&mut W, J) -> R,
    own: &'a mut W,
    pushed: u64,
    taken: u64,
}

impl<J, R, W> Line<'_, J, R, W> {
    pub fn push(&mut self, job: J) {
        self.shared.queue().waiting.push_back((self.pushed, job));
        self.pushed += 1;
        self.shared.work.notify_one();
    }

    /// Jobs whose results were not taken yet.
    pub fn len(&self) -> usize {
        (self.pushed - self.taken) as usize
    }

    /// The result of the oldest such job; None when there is none.
    pub fn next(&mut self) -> Option<R> {
        if self.taken == self.pushed {
            return None;
        }
        let mut queue = self.shared.queue();
        loop {
            if let Some(result) = queue.finished.remove(&self.taken) {
                self.taken += 1;
                return Some(result);
            }
            if let Some((number, job)) = queue.waiting.pop_front() {
                drop(queue);
                let result = (self.work)(self.own, job);
                queue = self.shared.queue();
                queue.finished.insert(number, result);
                continue;
            }
            if queue.failed {
                drop(queue);
                panic!("one of its threads failed");
            }
            queue = self
                .shared
                .done
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs `lead` with a line to as many threads as there are `workers`, itself being the first. All of them have ended when
/// this returns. Where the system has no more threads to give, fewer do the same.
pub fn in_order<J: Send, R: Send, W: Send, T>(
    workers: &mut [W],
    work: impl Fn(&mut W, J) -> R + Sync,
    lead: impl FnOnce(&mut Line<'_, J, R, W>) -> T,
) -> T {
    let queue = Queue {
        waiting: VecDeque::new(),
        finished: BTreeMap::new(),
        closed: false,
        failed: false,
    };
    let shared = Shared {
        queue: Mutex::new(queue),
        work: Condvar::new(),
        done: Condvar::new(),
    };
    let Some((own, others)) = workers.split_first_mut() else {
        panic!("nobody is there to work")
    };
    thread::scope(|scope| {
        let _closer = Closer(&shared);
        for worker in others {
            let serve = || serve(&shared, &work, worker);
            if thread::Builder::new()
                .name("compactd-clean".into())
                .spawn_scoped(scope, serve)
                .is_err()
            {
                break;
            }
        }
        lead(&mut Line {
            shared: &shared,
            work: &work,
            own,
            pushed: 0,
            taken: 0,
        })
    })
}

fn serve<J, R, W>(shared: &Shared<J, R>, work: &impl Fn(&mut W, J) -> R, own: &mut W) {
    let _alarm = Alarm(shared);
    loop {
        let mut queue = shared.queue();
        let (number, job) = loop {
            if queue.closed {
                return;
            }
            match queue.waiting.pop_front() {
                Some(next) => break next,
                None => {
                    queue = shared
                        .work
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        };
        drop(queue);
        let result = work(own, job);
        shared.queue().finished.insert(number, result);
        shared.done.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    #[test]
    fn results_come_in_order() {
        for threads in 1..5 {
            let mut workers = vec![0u64; threads];
            let work = |done: &mut u64, job: u64| {
                *done += 1;
                (0..job * 7919 % 1000).fold(job, |sum, x| std::hint::black_box(sum ^ x ^ x))
            };
            let results = in_order(&mut workers, work, |line| {
                let mut results = Vec::new();
                for job in 0..500 {
                    line.push(job);
                    if line.len() > 8 {
                        results.extend(line.next());
                    }
                }
                results.extend(std::iter::from_fn(|| line.next()));
                results
            });
            assert_eq!(results, (0..500).collect::<Vec<u64>>());
            assert_eq!(workers.iter().sum::<u64>(), 500);
        }
    }

    #[test]
    fn panics_reach_the_leader() {
        for threads in 1..4 {
            let mut workers = vec![(); threads];
            let work = |_: &mut (), job: u32| assert!(job != 3, "three");
            let ended = catch_unwind(AssertUnwindSafe(|| {
                in_order(&mut workers, work, |line| {
                    (0..10).for_each(|job| line.push(job));
                    while line.next().is_some() {}
                })
            }));
            assert!(ended.is_err());
        }
    }

    #[test]
    fn what_the_leader_leaves_is_dropped() {
        let mut workers = vec![(); 3];
        let left = in_order(
            &mut workers,
            |(), job: u32| job,
            |line| {
                (0..1000).for_each(|job| line.push(job));
                line.next()
            },
        );
        assert_eq!(left, Some(0));
    }
}
