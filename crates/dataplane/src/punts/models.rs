//! A bucket that two workers share, in every order that loom explores.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;

use super::{BURST, Bucket, INTERVAL_NS};

/// Takes two tokens; returns how many there were.
fn take_two(bucket: &Bucket, now_ns: u64) -> u64 {
    u64::from(bucket.take(now_ns)) + u64::from(bucket.take(now_ns))
}

#[test]
fn workers_neither_lose_tokens_nor_take_more() {
    loom::model(|| {
        let bucket = Arc::new(Bucket::default());
        // At 0, two tokens are left. The worker with the later clock finds one more.
        bucket.full_at.store(INTERVAL_NS * (BURST - 2), Relaxed);
        let thread = {
            let bucket = Arc::clone(&bucket);
            thread::spawn(move || take_two(&bucket, INTERVAL_NS))
        };
        let early = take_two(&bucket, 0);
        let late = thread.join().expect("no panic");
        assert_eq!(early + late + take_two(&bucket, INTERVAL_NS), 3);
    });
}
