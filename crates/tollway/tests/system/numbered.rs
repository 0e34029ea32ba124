//! Numbered UDP datagrams between A and B, in each direction independently. The test finds which of
//! them are lost, come twice, or come after a later one.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::ops::{AddAssign, Range};
use std::process::{ChildStdin, ChildStdout, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::namespaces::{Host, Process};
use crate::router::Net;

/// Time between two datagrams of one end. With 4 ms, four ends leave an emulated machine with one
/// processor no time for other work: routers took a minute to start.
const INTERVAL: Duration = Duration::from_millis(10);
/// Number of ends that send: two of each address family.
const ENDS: u64 = 4;
/// A datagram that comes later counts as lost.
const LATEST: Duration = Duration::from_secs(1);
/// Datagrams that arrive do so within this time.
const SOON: Duration = Duration::from_millis(200);
/// The UDP port of both ends.
const PORT: u16 = 7002;

/// What has happened to one number.
#[derive(Clone, Copy, Default)]
struct Arrival {
    times: u64,
    is_late: bool,
}

/// What has happened to a range of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub sent: u64,
    pub lost: u64,
    pub twice: u64,
    /// Number of datagrams that came after a later one.
    pub late: u64,
    /// The longest time without any datagram.
    pub hole: Duration,
}

impl Losses {
    /// Returns how long everything was lost, if all losses were at one time.
    pub fn outage(&self) -> Duration {
        INTERVAL * u32::try_from(self.lost / ENDS).unwrap()
    }
}

impl AddAssign for Losses {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.twice += other.twice;
        self.late += other.late;
        self.hole = self.hole.max(other.hole);
    }
}

impl std::fmt::Display for Losses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sent, lost, twice, late, hole } = self;
        write!(f, "{lost} of {sent} lost (a hole of {hole:?}), {twice} twice, {late} late")
    }
}

/// Sends datagrams to the other end and receives from it. It answers questions from its input: an
/// empty line requests the next number that it sends, two numbers request what has happened to the
/// other end's numbers between them.
pub fn end(own: SocketAddr, other: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(own).unwrap();
    let questions = questions();
    let (mut seen, mut next) = (Vec::new(), 0_u64);
    let mut due = Instant::now();
    loop {
        // A link that is down returns an error: the datagram is lost there.
        let _ = socket.send_to(&next.to_be_bytes(), other);
        next += 1;
        // A late end does not catch up with a burst.
        due = Instant::now().max(due + INTERVAL);
        while let Some(number) = receive(&socket, due) {
            note(&mut seen, number);
        }
        match questions.try_recv().as_deref() {
            Ok([]) => println!("{next}"),
            Ok(&[from, to, ..]) => println!("{}", words(&evaluate(&seen, from..to))),
            Ok([_]) | Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return ExitCode::SUCCESS,
        }
    }
}

/// Returns the numbers of each input line.
fn questions() -> Receiver<Vec<usize>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let numbers = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
            if sender.send(numbers).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns the next datagram's number, if one comes before `until`.
fn receive(socket: &UdpSocket, until: Instant) -> Option<usize> {
    let time = until.checked_duration_since(Instant::now()).filter(|time| !time.is_zero())?;
    socket.set_read_timeout(Some(time)).unwrap();
    let mut bytes = [0; 8];
    let len = socket.recv(&mut bytes).ok()?;
    assert_eq!(len, bytes.len());
    Some(u64::from_be_bytes(bytes).try_into().unwrap())
}

fn note(seen: &mut Vec<Arrival>, number: usize) {
    let is_late = number + 1 < seen.len();
    seen.resize(seen.len().max(number + 1), Arrival::default());
    let arrival = &mut seen[number];
    arrival.times += 1;
    arrival.is_late |= is_late && arrival.times == 1;
}

fn evaluate(seen: &[Arrival], wanted: Range<usize>) -> Losses {
    let (mut losses, mut missing) = (Losses { sent: wanted.len() as u64, ..Losses::default() }, 0);
    for arrival in wanted.map(|number| seen.get(number).copied().unwrap_or_default()) {
        missing = if arrival.times == 0 { missing + 1 } else { 0 };
        losses.lost += u64::from(arrival.times == 0);
        losses.twice += u64::from(arrival.times > 1);
        losses.late += u64::from(arrival.is_late);
        losses.hole = losses.hole.max(INTERVAL * missing);
    }
    losses
}

/// Formats losses for the output of an end. `read` parses them.
fn words(losses: &Losses) -> String {
    let Losses { sent, lost, twice, late, hole } = losses;
    format!("{sent} {lost} {twice} {late} {}", hole.as_millis())
}

fn read(words: &str) -> Losses {
    let numbers: Vec<u64> = words.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [sent, lost, twice, late, hole] = numbers[..] else { panic!("{words}") };
    Losses { sent, lost, twice, late, hole: Duration::from_millis(hole) }
}

/// One end, a process on its host.
struct End {
    _process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The first number that no question has covered.
    from: u64,
}

impl End {
    fn start(host: &Host, own: &str, other: &str) -> Self {
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), PORT).to_string();
        let mut command = host.role("--client", &address(own));
        command.args([&address(other), "numbered"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let input = process.0.stdin.take().unwrap();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        Self { _process: process, input, output, from: 0 }
    }

    fn query(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

/// Two ends that send to each other.
struct Flow {
    ends: [End; 2],
}

impl Flow {
    fn start(net: &Net, [a, b]: [&str; 2]) -> Self {
        Self { ends: [End::start(&net.a, a, b), End::start(&net.b, b, a)] }
    }

    /// Returns the number that each end sends next.
    fn next(&mut self) -> [u64; 2] {
        self.ends.each_mut().map(|end| end.query("").parse().unwrap())
    }

    /// Says whether both ends have received the other's datagram of that number.
    fn had(&mut self, numbers: [u64; 2]) -> bool {
        numbers.into_iter().enumerate().all(|(sender, number)| {
            let question = format!("{number} {}", number + 1);
            read(&self.ends[1 - sender].query(&question)).lost == 0
        })
    }

    /// Returns the losses since the last call, in both directions. Datagrams after `latest` are
    /// lost.
    fn losses(&mut self, latest: Instant) -> Losses {
        let next = self.next();
        let mut losses = Losses::default();
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let question = format!("{} {}", self.ends[sender].from, next[sender]);
            losses += loop {
                let found = read(&self.ends[receiver].query(&question));
                if found.lost == 0 || Instant::now() > latest {
                    break found;
                }
                std::thread::sleep(INTERVAL);
            };
            self.ends[sender].from = next[sender];
        }
        losses
    }
}

/// Numbered datagrams in both address families, sent until this is dropped.
pub struct Numbered([Flow; 2]);

impl Numbered {
    pub fn start(net: &Net) -> Self {
        let pairs = [["10.0.1.2", "10.0.2.2"], ["fd00:1::2", "fd00:2::2"]];
        Self(pairs.map(|pair| Flow::start(net, pair)))
    }

    /// Returns the losses since the last call.
    fn losses(&mut self) -> Losses {
        let (mut losses, latest) = (Losses::default(), Instant::now() + LATEST);
        self.0.iter_mut().for_each(|flow| losses += flow.losses(latest));
        losses
    }

    /// Returns the losses since the last call, once datagrams arrive again without loss. Returns
    /// `None` if that takes longer than `patience`.
    pub fn recovered(&mut self, patience: Duration) -> Option<Losses> {
        let (start, mut all) = (Instant::now(), Losses::default());
        while start.elapsed() < patience {
            // While nothing arrives, it does not wait for late datagrams.
            if !self.arrives() {
                continue;
            }
            let more = self.losses();
            all += more;
            if more.lost == 0 {
                return Some(all);
            }
        }
        None
    }

    /// Says whether datagrams sent now arrive soon, everywhere.
    fn arrives(&mut self) -> bool {
        let next = self.0.each_mut().map(Flow::next);
        std::thread::sleep(SOON);
        self.0.iter_mut().zip(next).all(|(flow, numbers)| flow.had(numbers))
    }
}
