// The server of http_load.py in Rust, on hyper and tokio: JSON, pages, sessions, packed answers. Usage: server PORT
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flate2::{write::ZlibEncoder, Compression};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;

type Sessions = Arc<Mutex<HashMap<String, Bytes>>>;

fn packed(data: &[u8]) -> Bytes {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::default());
    packer.write_all(data).expect("memory takes it");
    packer.finish().expect("memory takes it").into()
}

fn page(count: usize) -> String {
    let mut text = String::from("<html><body><table>\n");
    for i in 0..count {
        let name = format!("article {}", i * 7919 % 1000);
        let _ = writeln!(text, "<tr><td>{i}</td><td class=\"name\">{name}</td><td>{}.00</td></tr>", i * 31 % 97);
    }
    text + "</table></body></html>\n"
}

fn order(data: &[u8]) -> Vec<u8> {
    let mut given: Value = serde_json::from_slice(data).expect("the load sends orders");
    let mut sum = 0;
    for line in given["lines"].as_array_mut().expect("an order has lines") {
        let total = line["count"].as_u64().unwrap_or(0) * line["price"].as_u64().unwrap_or(0);
        line["words"] = line["note"].as_str().unwrap_or("").split(' ').collect::<Vec<_>>().into();
        line["total"] = total.into();
        sum += total;
    }
    given["sum"] = sum.into();
    serde_json::to_vec(&given).expect("what was read can be written")
}

async fn answer(request: Request<Incoming>, sessions: Sessions) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let data = body.collect().await.map(|all| all.to_bytes()).unwrap_or_default();
    let mut parts = head.uri.path().split('/').skip(1);
    let (kind, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let size = name.parse().unwrap_or(0);
    let body = match kind {
        "page" => packed(page(size).as_bytes()),
        "blob" => vec![b'b'; size].into(),
        "orders" => packed(&order(&data)),
        _ if head.method == Method::PUT => {
            sessions.lock().expect("no panic holds it").insert(name.to_string(), data);
            Bytes::from_static(b"kept\n")
        }
        _ => sessions.lock().expect("no panic holds it").get(name).cloned().unwrap_or_default(),
    };
    Ok(Response::new(Full::new(body)))
}

async fn serve(port: u16) -> std::io::Result<()> {
    let sessions = Sessions::default();
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let sessions = sessions.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, sessions.clone()));
            // Whoever closes a connection has what was asked for.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).and_then(|word| word.parse().ok()).expect("server PORT");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io().build()?;
    runtime.block_on(serve(port))
}
