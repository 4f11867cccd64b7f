//! Heap profiles over the program's own HTTP port: `pprof http://localhost:6060/debug/pprof/heap`
//! That is `github.com/google/pprof`: `go tool pprof` lacks names of Rust.
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem;

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = String::new();
    BufReader::new(&stream).read_line(&mut request)?;
    let done = match request.split(' ').nth(1) {
        Some("/debug/pprof/heap") => hakmem::profile::pprof(),
        Some("/debug/pprof/start") => hakmem::profile::start(0).map(|()| Vec::new()),
        Some("/debug/pprof/stop") => hakmem::profile::stop().map(|()| Vec::new()),
        _ => Err(hakmem::Error::Invalid),
    };
    match done {
        Ok(body) => {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
            stream.write_all(&body)
        }
        Err(error) => write!(stream, "HTTP/1.1 404 Not Found\r\n\r\n{error}\n"),
    }
}

fn main() -> std::io::Result<()> {
    hakmem::profile::start(0).expect("a profile");
    for stream in TcpListener::bind("127.0.0.1:6060")?.incoming() {
        answer(stream?)?;
    }
    Ok(())
}
