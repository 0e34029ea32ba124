use super::*;

/// Output of FreeBSD's ministat (Debian's package 20150715-1): the animals of its manual page, and
/// random numbers, odd in count. For an even count that version takes the higher of the two middle
/// values as median; FreeBSD's current one takes their mean.
const CASES: [&str; 8] = [
    include_str!("cases/no-difference.txt"),
    include_str!("cases/lower-standards.txt"),
    include_str!("cases/nanoseconds.txt"),
    include_str!("cases/many.txt"),
    include_str!("cases/small.txt"),
    include_str!("cases/negative.txt"),
    include_str!("cases/alike.txt"),
    include_str!("cases/apart.txt"),
];

fn sample(values: &[f64]) -> Sample {
    Sample::of(values).unwrap()
}

/// The numbers of a line after its first word.
fn numbers(line: Option<&str>) -> Sample {
    let words = line.unwrap().split_whitespace().skip(1);
    sample(&words.map(|word| word.parse().unwrap()).collect::<Vec<_>>())
}

fn options(line: Option<&str>) -> Options {
    let mut options = Options::default();
    let mut words = line.unwrap().split_whitespace().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next().unwrap().parse::<f64>().unwrap();
        match word {
            "-s" => options.separate = true,
            "-w" => options.width = number() as usize,
            "-c" => options.confidence = number() / 100.0,
            _ => panic!("{word}"),
        }
    }
    options
}

/// Our text without the top rows of the plot that ministat omits: if the first series rises higher
/// than the second, as in the iguana example, ministat loses the higher part.
fn as_low_as(expected: &str, ours: &str) -> String {
    let more = ours.lines().count() - expected.lines().count();
    let lines = ours.split_inclusive('\n').enumerate();
    lines.filter(|(at, _)| !(3..3 + more).contains(at)).map(|(_, line)| line).collect()
}

#[test]
fn the_text_is_ministats_to_the_letter() {
    for case in CASES {
        let mut lines = case.split_inclusive('\n');
        let [base, head] = [(); 2].map(|()| numbers(lines.next()));
        let options = options(lines.next());
        let expected: String = lines.collect();
        let ours = text(["base", "head"], [&base, &head], options).unwrap();
        assert_eq!(as_low_as(&expected, &ours), expected);
    }
}

/// The example of ministat's README; these values have the moments that it states.
#[test]
fn a_clear_cut_difference_is_reported() {
    let base = sample(&[0.133, 0.135, 0.136, 0.136, 0.137]);
    let head = sample(&[0.139, 0.139, 0.139, 0.140, 0.140]);
    let expected = "x _1
+ _2
+--------------------------------------------------------------------------+
|                                                               +          |
|                               x                               +         +|
|x                    x         x          x                    +         +|
|         |_______________A_____M_________|                   |_M___A____| |
+--------------------------------------------------------------------------+
    N           Min           Max        Median           Avg        Stddev
x   5         0.133         0.137         0.136        0.1354  0.0015165751
+   5         0.139          0.14         0.139        0.1394 0.00054772256
Difference at 95.0% confidence
\t0.004 +/- 0.00166288
\t2.95421% +/- 1.22812%
\t(Student's t, pooled s = 0.00114018)
";
    assert_eq!(text(["_1", "_2"], [&base, &head], Options::default()).unwrap(), expected);
}

#[test]
fn the_first_series_may_heap_higher() {
    let series = [sample(&[1.0, 1.0, 1.0, 2.0]), sample(&[1.0, 2.0, 2.0, 3.0])];
    let plotted = plot([&series[0], &series[1]], 9, true);
    let heap: Vec<_> = plotted.lines().skip(1).take(3).collect();
    assert_eq!(heap.len(), 3, "{plotted}");
    assert!(heap.iter().all(|row| row.contains(['x', '*'])), "{plotted}");
    assert_eq!(heap.concat().matches(['x', '*']).count(), 4, "{plotted}");
}

#[test]
fn too_few_values_are_refused_as_ministat_does() {
    let [two, three] = [[1.0, 2.0].as_slice(), &[1.0, 2.0, 3.0]].map(sample);
    assert_eq!(text(["a", "b"], [&two, &three], Options::default()), None);
}
