//! Conversations of hosts by TCP and UDP, which last as long as a test wants, and tell how they go.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{ChildStdout, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::namespaces::{Host, Process, ready};

/// Bytes of a question, and of its answer.
const LEN: usize = 64;
/// The time between two questions.
const PACE: Duration = Duration::from_millis(5);

/// Answers at an address (`serve,ADDRESS`), or asks (`talk,PROTOCOL,ADDRESS,CONNECTIONS,OWN PORT`).
pub fn role(words: &str) -> ExitCode {
    let words: Vec<_> = words.split(',').collect();
    match words[..] {
        ["serve", address] => serve(address),
        ["talk", protocol, address, count, port] => {
            ask((protocol, address), count.parse().unwrap(), port.parse().unwrap());
        }
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Answers each question with its number, the address that it came from, and the server's own.
fn serve(address: &str) {
    let (listener, socket) =
        (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
    println!("ready");
    let own = address.to_owned();
    std::thread::spawn(move || {
        let mut question = [0; LEN];
        loop {
            let Ok((LEN, from)) = socket.recv_from(&mut question) else { continue };
            let _ = socket.send_to(&answer(&question, from, &own), from);
        }
    });
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let (from, own) = (stream.peer_addr().unwrap(), address.to_owned());
        stream.set_nodelay(true).unwrap();
        std::thread::spawn(move || {
            let mut question = [0; LEN];
            while stream.read_exact(&mut question).is_ok() {
                if stream.write_all(&answer(&question, from, &own)).is_err() {
                    return;
                }
            }
        });
    }
}

fn answer(question: &[u8; LEN], from: SocketAddr, own: &str) -> [u8; LEN] {
    let number = std::str::from_utf8(question).unwrap().trim();
    padded(&format!("{number} {}@{own}", from.ip()))
}

fn padded(text: &str) -> [u8; LEN] {
    format!("{text:<LEN$}").into_bytes().try_into().unwrap()
}

/// How a conversation goes.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The number of questions.
    pub asked: u64,
    /// How many have an answer.
    pub answered: u64,
    /// The longest time until an answer, since the last report.
    pub longest_ms: u64,
    /// Why it has ended by itself.
    pub broken: Option<String>,
    /// What servers say: from which address they are asked, and `@` their own.
    pub seen: BTreeSet<String>,
}

impl Progress {
    fn note(&mut self, answer: &[u8], start: Instant) {
        let text = std::str::from_utf8(answer).unwrap().trim();
        self.answered += 1;
        self.longest_ms = self.longest_ms.max(start.elapsed().as_millis() as u64);
        self.seen.insert(text.split_once(' ').unwrap().1.to_owned());
    }

    fn line(&self) -> String {
        let Self { asked, answered, longest_ms, broken, seen } = self;
        let seen: Vec<_> = seen.iter().map(String::as_str).collect();
        let broken = broken.as_deref().unwrap_or("-");
        format!("{asked} {answered} {longest_ms} {broken} {}", seen.join(","))
    }

    fn read(line: &str) -> Self {
        let words: Vec<_> = line.trim_end_matches('\n').split(' ').collect();
        let &[asked, answered, longest_ms, broken, seen] = &words[..] else { panic!("{line}") };
        let [asked, answered, longest_ms] =
            [asked, answered, longest_ms].map(|word| word.parse().unwrap());
        let seen = seen.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        let broken = (broken != "-").then(|| broken.to_owned());
        Self { asked, answered, longest_ms, broken, seen }
    }
}

/// Asks until standard input ends; prints the progress at each line of that.
fn ask((protocol, address): (&str, &str), count: usize, port: u16) {
    let progress = Arc::new(Mutex::new(Progress::default()));
    let own = Arc::clone(&progress);
    let reports = move || {
        for _line in std::io::stdin().lines() {
            let mut progress = own.lock().unwrap();
            println!("{}", progress.line());
            progress.longest_ms = 0;
        }
    };
    let result = if protocol == "tcp" {
        let streams: Vec<_> = (0..count).map(|_| TcpStream::connect(address).unwrap()).collect();
        println!("ready");
        ask_streams(streams, &std::thread::spawn(reports), &progress)
    } else {
        let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
        socket.connect(address).unwrap();
        println!("ready");
        ask_socket(&socket, &std::thread::spawn(reports), &progress)
    };
    if let Err(error) = result {
        progress.lock().unwrap().broken = Some(format!("{:?}", error.kind()));
        // Reports go on.
        std::thread::sleep(Duration::from_secs(600));
    }
}

type Reports = std::thread::JoinHandle<()>;

fn ask_streams(
    mut streams: Vec<TcpStream>,
    reports: &Reports,
    progress: &Mutex<Progress>,
) -> std::io::Result<()> {
    for stream in &streams {
        stream.set_nodelay(true)?;
    }
    while !reports.is_finished() {
        for stream in &mut streams {
            let start = Instant::now();
            let number = {
                let mut progress = progress.lock().unwrap();
                progress.asked += 1;
                progress.asked
            };
            let mut bytes = padded(&number.to_string());
            stream.write_all(&bytes)?;
            stream.read_exact(&mut bytes)?;
            progress.lock().unwrap().note(&bytes, start);
        }
        std::thread::sleep(PACE);
    }
    Ok(())
}

fn ask_socket(
    socket: &UdpSocket,
    reports: &Reports,
    progress: &Mutex<Progress>,
) -> std::io::Result<()> {
    while !reports.is_finished() {
        let start = Instant::now();
        let number = {
            let mut progress = progress.lock().unwrap();
            progress.asked += 1;
            progress.asked
        };
        // An ICMP error makes this call fail, or the next.
        let _ = socket.send(&padded(&number.to_string()));
        let mut bytes = [0; LEN];
        while let Some(left) = PACE.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut bytes) {
                Ok(_) => progress.lock().unwrap().note(&bytes, start),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    Ok(())
}

/// A client on a host, which asks until this is dropped.
pub struct Talk {
    process: Process,
    reports: BufReader<ChildStdout>,
    since: Instant,
}

impl Talk {
    /// Starts one conversation by `tcp` or `udp` with a server.
    pub fn start(host: &Host, protocol: &str, address: &str) -> Self {
        Self::start_all(host, (protocol, address), 1, 0)
    }

    /// Starts so many conversations; `port` is the client's own port for datagrams, or 0.
    pub fn start_all(
        host: &Host,
        (protocol, address): (&str, &str),
        count: usize,
        port: u16,
    ) -> Self {
        let mut command = host.role("--role", &format!("talk,{protocol},{address},{count},{port}"));
        let mut process = ready(command.stdin(Stdio::piped()));
        let reports = BufReader::new(process.0.stdout.take().unwrap());
        Self { process, reports, since: Instant::now() }
    }

    /// Says for how long the conversation lasts already.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How it goes.
    pub fn progress(&mut self) -> Progress {
        self.process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        while line.trim().is_empty() {
            assert!(self.reports.read_line(&mut line).unwrap() > 0, "the client has ended");
        }
        Progress::read(line.trim_start())
    }

    /// What servers have said so far.
    pub fn seen(&mut self) -> BTreeSet<String> {
        self.progress().seen
    }

    /// The number of answers within a time.
    pub fn answers_within(&mut self, time: Duration) -> u64 {
        let before = self.progress().answered;
        std::thread::sleep(time);
        self.progress().answered - before
    }

    /// Waits until the conversation is so old, in milliseconds.
    pub fn lasts(&self, age_ms: u64) {
        std::thread::sleep(Duration::from_millis(age_ms).saturating_sub(self.age()));
    }

    /// Asserts that questions are answered, and that all were so far, but for those that the last answers may be late for.
    #[track_caller]
    pub fn is_going_on(&mut self) {
        assert!(self.answers_within(PACE * 60) > 0);
        let progress = self.progress();
        let missing = progress.asked - progress.answered;
        assert!(progress.broken.is_none() && missing < 20, "{progress:?}");
    }

    /// Ends the conversation as its client does.
    pub fn end(mut self) {
        drop(self.process.0.stdin.take());
        assert!(self.process.0.wait().unwrap().success());
    }
}

/// Starts a server on a host.
pub fn server(host: &Host, address: &str) -> Process {
    ready(&mut host.role("--role", &format!("serve,{address}")))
}

/// Starts a server on the router itself.
pub fn server_here(address: &str) -> Process {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    ready(command.args(["--role", &format!("serve,{address}")]))
}
