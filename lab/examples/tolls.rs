fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    println!("{}", tollway_dataplane::tolls::Tolls::new().clock_cost());
    println!("{}", tollway_lab::tolls::render(&tollway_lab::tolls::run(&only).unwrap()));
}
