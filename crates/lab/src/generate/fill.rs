//! The generator's inner loop: frame heads built ahead, and the fields that change.

use tollway_dataplane::frame::{Descriptor, Umem};

use super::mark;
use super::plan::{HEAD, Plan};

/// Writes the frames of a stream, one after the other.
#[derive(Clone, Debug)]
pub struct Filler {
    plan: Plan,
    /// Run and stream, as in a mark.
    origin: u64,
    seq: u64,
    flow: usize,
    /// Position in the sequence of sizes.
    position: usize,
    write: fn(&mut Self, &mut Umem, &mut [Descriptor], u64) -> usize,
}

impl Filler {
    /// Starts a stream.
    #[must_use]
    pub fn new(plan: Plan, run: u8, stream: u8) -> Self {
        // The bytes that are copied beyond a head are zero in both source and frame.
        let write = match (plan.mark_at + 2 <= 48, plan.mark_at + 2 <= 64, plan.udp_checksum) {
            (true, _, false) => Self::frames::<48, false>,
            (true, _, true) => Self::frames::<48, true>,
            (_, true, false) => Self::frames::<64, false>,
            (_, true, true) => Self::frames::<64, true>,
            (_, _, false) => Self::frames::<HEAD, false>,
            (_, _, true) => Self::frames::<HEAD, true>,
        };
        let origin = mark::origin(run, stream);
        Self { plan, origin, seq: 0, flow: 0, position: 0, write }
    }

    /// The sequence number of the next frame, which equals the number of frames so far.
    #[cfg(test)]
    const fn seq(&self) -> u64 {
        self.seq
    }

    /// Writes frames into free chunks. Returns their number, which is below `frames.len()` if
    /// chunks are short. All frames carry the time `now_ns`.
    #[inline]
    pub fn fill(&mut self, umem: &mut Umem, frames: &mut [Descriptor], now_ns: u64) -> usize {
        (self.write)(self, umem, frames, now_ns)
    }

    fn frames<const COPY: usize, const CHECKSUM: bool>(
        &mut self,
        umem: &mut Umem,
        frames: &mut [Descriptor],
        now_ns: u64,
    ) -> usize {
        let (sizes, flows) = (self.plan.lens.len(), self.plan.flows());
        let now = now_ns.to_be();
        let (mark_at, mut made) = (self.plan.mark_at, 0);
        for frame in frames {
            let Some(addr) = umem.alloc() else { break };
            let size = match sizes {
                1 => 0,
                _ => usize::from(self.plan.order[self.position]),
            };
            let row = &self.plan.rows[self.flow * sizes + size];
            let name = (self.origin | self.seq & mark::MAX_SEQ).to_be();
            if let Some(head) = row.first_chunk::<COPY>() {
                *umem.bytes_mut::<COPY>(addr, 0) = *head;
            }
            let changes = u128::from(now) << 64 | u128::from(name);
            *umem.bytes_mut::<16>(addr, mark_at + 2) = changes.to_le_bytes();
            if CHECKSUM {
                let field = umem.bytes_mut::<2>(addr, mark_at - 2);
                *field = finish(u16::from_le_bytes(*field), [name, now]).to_le_bytes();
            }
            *frame = Descriptor { addr, len: self.plan.lens[size] as u32 };
            made += 1;
            self.seq += 1;
            self.flow = if self.flow + 1 == flows { 0 } else { self.flow + 1 };
            if sizes > 1 {
                self.position =
                    if self.position + 1 == self.plan.order.len() { 0 } else { self.position + 1 };
            }
        }
        made
    }
}

/// The UDP checksum: the sum of the constant part, plus two words that change, in memory order. The
/// ones' complement sum is independent of byte order (RFC 1071), so changed words are simply added
/// (RFC 1624).
#[inline(always)]
fn finish(constant: u16, words: [u64; 2]) -> u16 {
    let halves = |word: u64| (word >> 32) + (word & 0xffff_ffff);
    let sum = u64::from(constant) + halves(words[0]) + halves(words[1]);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    // Zero means that there is no checksum.
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use tollway_dataplane::wire::checksum;

    use super::super::mark::{Mark, of_frame};
    use super::super::plan::{IMIX, Spec, tests::spec};
    use super::*;

    fn made(spec: &Spec, count: usize, now_ns: u64) -> Vec<Vec<u8>> {
        let mut umem = Umem::new(2048, 2048).unwrap();
        let mut filler = Filler::new(Plan::new(spec).unwrap(), 7, 3);
        let mut frames = vec![Descriptor::default(); count];
        assert_eq!(filler.fill(&mut umem, &mut frames, now_ns), count);
        assert_eq!(filler.seq(), count as u64);
        frames.iter().map(|frame| umem.frame(frame.addr, frame.len as usize).to_vec()).collect()
    }

    /// Sums UDP with its pseudo-header as a receiver does: all ones if the checksum is correct.
    fn sum_of_udp(frame: &[u8], l3: usize) -> u16 {
        let v6 = frame[l3] >> 4 == 6;
        let (udp, addresses) = if v6 { (l3 + 40, l3 + 8) } else { (l3 + 20, l3 + 12) };
        let mut bytes = frame[addresses..].to_vec();
        bytes.extend_from_slice(&[0; 1][..bytes.len() % 2]);
        bytes.extend_from_slice(&[0, 17]);
        bytes.extend_from_slice(&((frame.len() - udp) as u16).to_be_bytes());
        checksum::sum(&bytes)
    }

    #[test]
    fn frames_carry_marks_and_flows_in_turn() {
        let spec = Spec { dst: "198.18.0.0/30".parse().unwrap(), ..spec() };
        for (seq, frame) in made(&spec, 10, 77).iter().enumerate() {
            let mark = Mark { run: 7, stream: 3, seq: seq as u64, sent_ns: 77 };
            assert_eq!(of_frame(frame), Some(mark));
            assert_eq!(frame.len(), 60);
            assert_eq!(frame[33], seq as u8 % 4);
            assert_eq!(checksum::sum(&frame[14..34]), 0xffff);
        }
    }

    #[test]
    fn checksums_fit_whatever_is_in_a_mark() {
        let v6: [_; 2] = ["2001:2::/64", "2001:2:0:1::1"].map(|text| text.parse().unwrap());
        for tags in [vec![], vec![1], vec![1, 2]] {
            let l3 = 14 + 4 * tags.len();
            let base = Spec { vlans: tags, sizes: vec![(93, 1)], ..spec() };
            let v4 = Spec { udp_checksum: true, ..base.clone() };
            let v6 = Spec { dst: v6[0], src: v6[1], ..base };
            for (spec, now_ns) in
                [(&v4, 0), (&v6, u64::MAX), (&v4, 0x1234_5678_9abc_def0), (&v6, 99)]
            {
                for frame in made(spec, 1500, now_ns) {
                    assert_eq!(sum_of_udp(&frame, l3), 0xffff);
                    assert_eq!(of_frame(&frame).unwrap().sent_ns, now_ns);
                }
            }
        }
    }

    #[test]
    fn sizes_come_in_their_shares() {
        let spec = Spec {
            sizes: IMIX.to_vec(),
            flows: Some(5),
            src: "198.19.0.0/16".parse().unwrap(),
            ..spec()
        };
        let frames = made(&spec, 1200, 1);
        let count = |len: usize| frames.iter().filter(|frame| frame.len() == len).count();
        assert_eq!([count(60), count(590), count(1514)], [700, 400, 100]);
        for frame in &frames {
            assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])) + 14, frame.len());
            assert!(of_frame(frame).is_some());
        }
    }

    #[test]
    fn a_stream_without_chunks_waits() {
        let mut umem = Umem::new(2, 2048).unwrap();
        let mut filler = Filler::new(Plan::new(&spec()).unwrap(), 0, 0);
        let mut frames = [Descriptor::default(); 4];
        assert_eq!(filler.fill(&mut umem, &mut frames, 0), 2);
        umem.free(frames[0].addr);
        assert_eq!(filler.fill(&mut umem, &mut frames, 0), 1);
        assert_eq!(filler.seq(), 3);
    }
}
