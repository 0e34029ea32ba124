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
