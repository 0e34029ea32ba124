fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let report = tollway_lab::filter::run(&tollway_lab::filter::Options { only, data: None }).unwrap();
    println!("{}", tollway_lab::filter::render(&report));
}
