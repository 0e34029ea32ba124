//! The two processors that workers are measured on.

/// Two processors, of two cores if there are two.
pub(super) fn pair(available: &[usize]) -> Option<[usize; 2]> {
    choose(available, core)
}

/// Two processors whose frames come to queues of different workers, by a veth with two queues: one with an even number
/// and a higher one with an odd number; of two cores, if there are such. The first worker gets the lower one.
pub(super) fn of_queues(available: &[usize]) -> Option<[usize; 2]> {
    let pairs = |first: usize| {
        let seconds = available.iter().filter(move |second| **second > first && *second % 2 == 1);
        seconds.map(move |second| [first, *second])
    };
    let pairs = || available.iter().filter(|first| *first % 2 == 0).flat_map(|first| pairs(*first));
    pairs().find(|pair| !share_a_core(*pair)).or_else(|| pairs().next())
}

fn choose(available: &[usize], core: impl Fn(usize) -> Option<String>) -> Option<[usize; 2]> {
    let (first, rest) = available.split_first()?;
    let own = core(*first);
    let apart = rest.iter().find(|other| core(**other) != own);
    Some([*first, *apart.or_else(|| rest.first())?])
}

/// Names the core of a processor by all its processors; none if the kernel does not say.
fn core(processor: usize) -> Option<String> {
    let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
    std::fs::read_to_string(path).ok()
}

/// Says whether both processors are threads of one core.
pub(super) fn share_a_core([one, other]: [usize; 2]) -> bool {
    core(one).is_some_and(|siblings| Some(siblings) == core(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_queues_has_an_even_processor() {
        assert_eq!(of_queues(&[1, 4, 6, 7]), Some([4, 7]));
        assert_eq!(of_queues(&[1, 2]), None, "the first worker would be pinned to 1");
        assert_eq!(of_queues(&[0, 2]), None, "both come to the first queue");
    }

    #[test]
    fn processors_of_two_cores_come_first() {
        let siblings = |processor: usize| Some(format!("{}", processor / 2));
        assert_eq!(choose(&[0, 1, 2, 3], siblings), Some([0, 2]));
        assert_eq!(choose(&[4, 5], siblings), Some([4, 5]), "one core is all there is");
        assert_eq!(choose(&[1, 3], |_| None), Some([1, 3]));
        assert_eq!(choose(&[7], siblings), None);
        assert_eq!(choose(&[], siblings), None);
    }
}
