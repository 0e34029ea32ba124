use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use super::*;

#[test]
fn chunks_are_apart_and_come_back() {
    let mut umem = Umem::new(4, 512).unwrap();
    let mut held: Vec<_> = (0..4).map(|_| umem.alloc().unwrap()).collect();
    assert!(umem.alloc().is_none());
    held.sort_by_key(|addr| addr.0);
    assert!(held.windows(2).all(|pair| pair[1].0 - pair[0].0 == 512));
    umem.free(FrameAddr(held[2].0 - 10));
    assert_eq!(umem.alloc(), Some(held[2]));
}

#[test]
fn an_access_outside_lands_in_the_guard() {
    let mut umem = Umem::new(1, 512).unwrap();
    *umem.bytes_mut::<4>(FrameAddr(u32::MAX), 7) = [1, 2, 3, 4];
    *umem.bytes_mut::<4>(FrameAddr(3), 0usize.wrapping_sub(4)) = [5; 4];
    assert_eq!(umem.frame(FrameAddr(0), 512), &[0; 512][..]);
    assert_eq!(umem.frame(FrameAddr(700), 9999).len(), 512 + GUARD - 700);
    assert!(umem.frame(FrameAddr(u32::MAX), 9).is_empty());
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    assert!(Umem::new(1, 500).is_none());
    assert!(Umem::new(1, 256).is_none());
    assert!(Umem::new(1 << 20, 65_536).is_none());
}

#[test]
fn store_copies_what_fits() {
    let mut umem = Umem::new(1, 512).unwrap();
    assert!(umem.store(&[7; 241]).is_none());
    let frame = umem.store(&[7; 240]).unwrap();
    assert_eq!(umem.frame(frame.addr, 240), &[7; 240]);
    assert!(umem.store(&[7]).is_none());
}

const LIMIT: usize = 1000;

fn chained(chunks: u32) -> Umem {
    Umem::for_frames(chunks, 512, LIMIT, |_, _| {}).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7) as u8).collect()
}

#[test]
fn a_large_frame_has_several_chunks_and_gives_all_of_them_back() {
    let mut umem = chained(5);
    let bytes = pattern(LIMIT);
    assert!(umem.store(&pattern(LIMIT + 1)).is_none(), "beyond the limit");
    let frame = umem.store(&bytes).unwrap();
    assert_eq!((frame.len as usize, umem.available()), (LIMIT, 0));
    let pieces: Vec<_> = umem.pieces(frame).map(|piece| piece.len).collect();
    assert_eq!(pieces, [240, 240, 240, 240, 40]);
    assert_eq!(*umem.whole(frame), bytes);
    assert!(umem.store(&[1; 241]).is_none());
    umem.free(frame.addr);
    assert_eq!(umem.available(), 5);
    assert!(!umem.has_chains());
    assert!(umem.store(&[1; 241]).is_some());
}

#[test]
fn a_failed_store_keeps_nothing() {
    let mut umem = chained(3);
    assert!(umem.store(&pattern(LIMIT)).is_none());
    assert_eq!(umem.available(), 3);
    assert!(!umem.has_chains());
}

#[test]
fn a_chain_whose_header_grew_and_whose_end_was_cut_is_still_itself() {
    let mut umem = chained(8);
    let bytes = pattern(600);
    let frame = umem.store(&bytes).unwrap();
    // Four more bytes before the frame, three fewer at its end.
    let grown = Descriptor { addr: FrameAddr(frame.addr.0 - 4), len: 600 + 4 - 3 };
    *umem.bytes_mut::<4>(grown.addr, 0) = [1, 2, 3, 4];
    let expected: Vec<u8> = [1, 2, 3, 4].iter().chain(&bytes[..597]).copied().collect();
    assert_eq!(*umem.whole(grown), expected);
    // Cut to what its first chunk holds: the other chunks are not lost.
    let cut = Descriptor { addr: frame.addr, len: 100 };
    assert_eq!(*umem.whole(cut), bytes[..100]);
    umem.free(cut.addr);
    assert_eq!(umem.available(), 8);
}

#[test]
fn a_chain_taken_apart_is_single_chunks() {
    let mut umem = chained(8);
    let frame = umem.store(&pattern(700)).unwrap();
    let cut = Descriptor { len: 300, ..frame };
    let mut pieces = Vec::new();
    umem.take_apart(cut, |piece| pieces.push(piece));
    assert_eq!(pieces.iter().map(|piece| piece.len).collect::<Vec<_>>(), [240, 60]);
    assert!(!umem.has_chains());
    assert_eq!(umem.available(), 6, "the third chunk had nothing left");
    for piece in pieces {
        umem.free(piece.addr);
    }
    assert_eq!(umem.available(), 8);
}

#[test]
fn chains_are_given_back_whole_one_by_one_and_all_at_once() {
    let mut umem = chained(32);
    let mut frames: Vec<_> = (0..5).map(|_| umem.store(&pattern(700)).unwrap()).collect();
    frames.push(umem.store(&pattern(9)).unwrap());
    assert_eq!(frames.iter().map(|frame| umem.chunks_of(frame.addr)).sum::<usize>(), 16);
    umem.free_all(frames.iter().map(|frame| frame.addr));
    assert_eq!((umem.available(), umem.chunks(), umem.has_chains()), (32, 32, false));
    let mut all: Vec<_> = (0..32).map(|_| umem.alloc().unwrap().0).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 32, "no chunk is free twice");
}

#[test]
fn single_frames_are_one_piece_beside_chains() {
    let mut umem = chained(8);
    let single = umem.store(&pattern(9)).unwrap();
    let chain = umem.store(&pattern(500)).unwrap();
    assert_eq!(umem.pieces(single).collect::<Vec<_>>(), [single]);
    umem.free(single.addr);
    assert_eq!((umem.available(), umem.whole(chain).len()), (5, 500));
}

#[test]
fn the_area_outlives_its_umem() {
    let umem = Umem::new(2, 4096).unwrap();
    let area = Arc::clone(umem.area());
    drop(umem);
    assert_eq!((area.bytes(), area.chunk_bytes()), (8192, 4096));
    assert_eq!(area.address() % 4096, 0);
}

/// A further handle of the area.
#[allow(unsafe_code)]
fn share(umem: &Umem) -> Umem {
    // SAFETY: the tests access and free frames only by the handle that has stored or received them.
    unsafe { umem.share() }
}

/// Allocates until no chunk is left, and counts.
fn exhaust(umem: &mut Umem) -> usize {
    std::iter::from_fn(|| umem.alloc()).count()
}

#[test]
fn an_area_with_one_handle_keeps_its_chunks() {
    let mut umem = Umem::new(4096, 512).unwrap();
    umem.balance();
    assert_eq!((umem.available(), umem.pooled()), (4096, 0));
}

#[test]
fn balance_bounds_what_a_handle_keeps() {
    let mut first = Umem::new(8192, 512).unwrap();
    let mut second = share(&first);
    assert_eq!((second.available(), second.pooled()), (0, 0));
    assert_eq!(second.alloc(), None, "the first handle still has all");
    first.balance();
    assert_eq!((first.available(), first.pooled()), (512, 8192 - 512));
    let frame = second.alloc().unwrap();
    assert_eq!((second.available(), second.pooled()), (255, 8192 - 512 - 256));
    second.free(frame);
    let frames: Vec<_> = (0..2000).map(|_| first.alloc().unwrap()).collect();
    second.free_all(frames.into_iter());
    assert_eq!(second.available(), 2256);
    second.balance();
    assert_eq!(second.available(), 512);
    assert_eq!(first.available() + second.available() + first.pooled(), 8192);
}

#[test]
fn a_handle_keeps_less_of_a_small_area() {
    let mut handles = vec![Umem::new(64, 512).unwrap()];
    handles.extend((1..4).map(|_| share(&handles[0])).collect::<Vec<_>>());
    handles.iter_mut().for_each(Umem::balance);
    assert_eq!((handles[0].available(), handles[0].pooled()), (4, 60));
    let held: Vec<_> = (0..20).map(|_| handles[1].alloc().unwrap()).collect();
    handles[2].free_all(held.into_iter());
    handles[2].balance();
    assert_eq!(handles[2].available(), 4);
}

#[test]
fn the_chunks_of_a_handle_go_to_those_that_remain() {
    let mut first = Umem::new(64, 512).unwrap();
    let mut second = share(&first);
    first.balance();
    let frame = second.alloc().unwrap();
    drop(second);
    assert_eq!(first.available() + first.pooled(), 63);
    first.free(frame);
    first.balance();
    assert_eq!(exhaust(&mut first), 64);
}

#[test]
fn when_no_chunk_is_free_every_handle_says_so() {
    let mut first = Umem::new(64, 512).unwrap();
    let mut second = share(&first);
    first.balance();
    let taken = exhaust(&mut second) + exhaust(&mut first);
    assert_eq!((taken, first.pooled()), (64, 0));
    assert!(first.alloc().is_none() && second.alloc().is_none());
    assert!(second.store(&[1; 9]).is_none());
    second.free(FrameAddr(512));
    assert_eq!(exhaust(&mut first), 0, "the chunk is in the other cache");
    assert_eq!(exhaust(&mut second), 1);
}

#[test]
fn another_handle_reads_and_frees_a_chain() {
    let mut first = chained(32);
    let mut second = share(&first);
    let bytes = pattern(700);
    let frame = first.store(&bytes).unwrap();
    assert!(second.has_chains());
    assert_eq!(*second.whole(frame), bytes);
    second.free(frame.addr);
    assert!(!first.has_chains());
    assert_eq!((first.available(), second.available()), (29, 3));
}

#[test]
fn a_failed_store_keeps_nothing_of_the_pool() {
    let mut first = chained(8);
    let mut second = share(&first);
    first.balance();
    while first.available() + first.pooled() > 3 {
        first.alloc().unwrap();
    }
    assert!(second.store(&pattern(LIMIT)).is_none());
    assert_eq!(first.available() + second.available() + first.pooled(), 3);
    assert!(!second.has_chains());
}

/// A worker of the test: it stores frames for another worker, and checks and frees those that it gets.
struct Worker<'a> {
    umem: Umem,
    out: Sender<Descriptor>,
    into: Receiver<Descriptor>,
    /// For each chunk whether a frame has it.
    taken: &'a [AtomicBool],
}

impl Worker<'_> {
    fn work(mut self, frames: usize) -> Umem {
        let mut sent = 0;
        while sent < frames {
            // Some frames have three chunks.
            let len = if sent.is_multiple_of(5) { 600 } else { 60 + sent % 100 };
            if let Some(frame) = self.umem.store(&pattern(len)) {
                self.mark(frame, true);
                self.out.send(frame).unwrap();
                sent += 1;
            }
            while let Ok(frame) = self.into.try_recv() {
                self.check_and_free(frame);
            }
            self.umem.balance();
        }
        self.finish()
    }

    /// Frees what still arrives, until the other worker sends no more.
    fn finish(mut self) -> Umem {
        self.out = channel().0;
        loop {
            match self.into.try_recv() {
                Ok(frame) => self.check_and_free(frame),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return self.umem,
            }
            self.umem.balance();
        }
    }

    fn check_and_free(&mut self, frame: Descriptor) {
        assert_eq!(*self.umem.whole(frame), pattern(frame.len as usize));
        self.mark(frame, false);
        self.umem.free(frame.addr);
    }

    fn mark(&self, frame: Descriptor, taken: bool) {
        for piece in self.umem.pieces(frame) {
            let before = self.taken[piece.addr.0 as usize / 512].swap(taken, Relaxed);
            assert_ne!(before, taken, "a chunk has two owners");
        }
    }
}

#[test]
fn frames_pass_between_workers_and_no_chunk_is_lost() {
    const CHUNKS: usize = 256;
    let frames = if cfg!(miri) { 300 } else { 100_000 };
    let taken: Vec<_> = (0..CHUNKS).map(|_| AtomicBool::new(false)).collect();
    let first = chained(CHUNKS as u32);
    let second = share(&first);
    let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
    let workers = [
        Worker { umem: first, out: to_second, into: from_second, taken: &taken },
        Worker { umem: second, out: to_first, into: from_first, taken: &taken },
    ];
    let handles: Vec<_> = thread::scope(|scope| {
        let threads = workers.map(|worker| scope.spawn(move || worker.work(frames)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let cached: usize = handles.iter().map(Umem::available).sum();
    assert_eq!(cached + handles[0].pooled(), CHUNKS);
    assert!(!handles[0].has_chains());
}
