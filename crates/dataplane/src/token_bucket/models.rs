//! A bucket that two workers share, in every order that loom explores.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::{Rate, TokenBucket};

const RATE: Rate = Rate { interval_ns: 100_000, burst: 1_000 };

/// Takes two tokens; returns how many there were.
fn take_two(bucket: &TokenBucket, now_ns: u64) -> u64 {
    u64::from(bucket.take(RATE, now_ns)) + u64::from(bucket.take(RATE, now_ns))
}

#[test]
fn workers_neither_lose_tokens_nor_take_more() {
    loom::model(|| {
        let bucket = Arc::new(TokenBucket::default());
        // At 0, two tokens are left. The worker with the later clock finds one more.
        bucket.full_at.store(RATE.interval_ns * (RATE.burst - 2), Relaxed);
        let thread = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || take_two(&bucket, RATE.interval_ns))
        };
        let early = take_two(&bucket, 0);
        let late = thread.join().expect("no panic");
        assert_eq!(early + late + take_two(&bucket, RATE.interval_ns), 3);
    });
}
