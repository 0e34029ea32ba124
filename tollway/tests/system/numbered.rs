//! Numbered datagrams by UDP between A and B, in each direction by itself: which of them are lost, come twice,
//! or come after a later one.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::ops::{AddAssign, Range};
use std::process::{ChildStdin, ChildStdout, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::namespaces::{Host, Process};
use crate::router::Net;

/// Between two datagrams of one end. Four ends with 4 ms leave an emulated machine with one processor no time for
/// anything else: routers took a minute to start.
const INTERVAL: Duration = Duration::from_millis(10);
/// Two ends of each family send.
const ENDS: u64 = 4;
/// What comes later counts as lost.
const LATEST: Duration = Duration::from_secs(1);
/// What arrives, does so in this time.
const SOON: Duration = Duration::from_millis(200);
/// Both ends have it.
const PORT: u16 = 7002;

/// What has become of one number.
#[derive(Clone, Copy, Default)]
struct Arrival {
    times: u64,
    is_late: bool,
}

/// What has become of some numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub sent: u64,
    pub lost: u64,
    pub twice: u64,
    /// These came after a later one.
    pub late: u64,
    /// The longest time without any.
    pub hole: Duration,
}

impl Losses {
    /// For so long all was lost, if it was lost at once.
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

/// Sends to the other end and takes in what comes from there. A line on its input asks: an empty one for the next
/// number that it sends, one with two numbers for what has become of the other end's between them.
pub fn end(own: SocketAddr, other: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(own).unwrap();
    let questions = questions();
    let (mut seen, mut next) = (Vec::new(), 0_u64);
    let mut due = Instant::now();
    loop {
        // A link that is down says so: what was to be sent is lost there.
        let _ = socket.send_to(&next.to_be_bytes(), other);
        next += 1;
        // An end that was late does not make up for that with a burst.
        due = Instant::now().max(due + INTERVAL);
        while let Some(number) = receive(&socket, due) {
            note(&mut seen, number);
        }
        match questions.try_recv().as_deref() {
            Ok([]) => println!("{next}"),
            Ok(&[from, to, ..]) => println!("{}", words(&judge(&seen, from..to))),
            Ok([_]) | Err(mpsc::TryRecvError::Empty) => {}
            Err(mpsc::TryRecvError::Disconnected) => return ExitCode::SUCCESS,
        }
    }
}

/// The numbers of each line of the input.
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

/// The next that comes until then.
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

fn judge(seen: &[Arrival], wanted: Range<usize>) -> Losses {
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

/// As one end tells them, and as they are read.
fn words(losses: &Losses) -> String {
    let Losses { sent, lost, twice, late, hole } = losses;
    format!("{sent} {lost} {twice} {late} {}", hole.as_millis())
}

fn read(words: &str) -> Losses {
    let numbers: Vec<u64> = words.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [sent, lost, twice, late, hole] = numbers[..] else { panic!("{words}") };
    Losses { sent, lost, twice, late, hole: Duration::from_millis(hole) }
}

/// One end, as a process of its host.
struct End {
    _process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The first number of which nobody has asked.
    from: u64,
}

impl End {
    fn start(host: &Host, own: &str, other: &str) -> Self {
        let address = |ip: &str| SocketAddr::new(ip.parse().unwrap(), PORT).to_string();
        let mut command = host.role("--ask", &address(own));
        command.args([&address(other), "numbered"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process(command.spawn().unwrap());
        let input = process.0.stdin.take().unwrap();
        let output = BufReader::new(process.0.stdout.take().unwrap());
        Self { _process: process, input, output, from: 0 }
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.input, "{question}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

/// Two ends, each of which sends to the other.
struct Flow {
    ends: [End; 2],
}

impl Flow {
    fn start(net: &Net, [a, b]: [&str; 2]) -> Self {
        Self { ends: [End::start(&net.a, a, b), End::start(&net.b, b, a)] }
    }

    /// The number that each end sends next.
    fn next(&mut self) -> [u64; 2] {
        self.ends.each_mut().map(|end| end.ask("").parse().unwrap())
    }

    /// Whether both ends had the other's of that number.
    fn had(&mut self, numbers: [u64; 2]) -> bool {
        numbers.into_iter().enumerate().all(|(sender, number)| {
            let question = format!("{number} {}", number + 1);
            read(&self.ends[1 - sender].ask(&question)).lost == 0
        })
    }

    /// What has become of all since the last time, in both directions; what comes after that time is lost.
    fn losses(&mut self, latest: Instant) -> Losses {
        let next = self.next();
        let mut losses = Losses::default();
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let question = format!("{} {}", self.ends[sender].from, next[sender]);
            losses += loop {
                let found = read(&self.ends[receiver].ask(&question));
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

/// Numbered datagrams by both families, until this is dropped.
pub struct Numbered([Flow; 2]);

impl Numbered {
    pub fn start(net: &Net) -> Self {
        let pairs = [["10.0.1.2", "10.0.2.2"], ["fd00:1::2", "fd00:2::2"]];
        Self(pairs.map(|pair| Flow::start(net, pair)))
    }

    /// What has become of all since the last time.
    fn losses(&mut self) -> Losses {
        let (mut losses, latest) = (Losses::default(), Instant::now() + LATEST);
        self.0.iter_mut().for_each(|flow| losses += flow.losses(latest));
        losses
    }

    /// What has become of all since the last time, once nothing has been lost for a while; nothing if that takes too
    /// long.
    pub fn settled(&mut self, patience: Duration) -> Option<Losses> {
        let (start, mut all) = (Instant::now(), Losses::default());
        while start.elapsed() < patience {
            // Nobody waits for what is late while nothing comes.
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

    /// Whether what is sent now arrives soon, everywhere.
    fn arrives(&mut self) -> bool {
        let next = self.0.each_mut().map(Flow::next);
        std::thread::sleep(SOON);
        self.0.iter_mut().zip(next).all(|(flow, numbers)| flow.had(numbers))
    }
}
