// Maps, strings, boxes and channels of the standard library. Usage: maps FILE THREADS
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{mpsc, Arc};
use std::{env, fs, thread};

struct Tree {
    word: String,
    lines: Vec<u32>,
    below: [Option<Box<Tree>>; 2],
}

fn insert(tree: &mut Option<Box<Tree>>, word: &str, line: u32) {
    match tree {
        None => *tree = Some(Box::new(Tree { word: word.to_string(), lines: vec![line], below: [None, None] })),
        Some(node) if node.word == word => node.lines.push(line),
        Some(node) => insert(&mut node.below[(word > node.word.as_str()) as usize], word, line),
    }
}

fn depth(tree: &Option<Box<Tree>>) -> usize {
    tree.as_ref().map_or(0, |node| 1 + depth(&node.below[0]).max(depth(&node.below[1])))
}

fn work(text: &str, part: usize, parts: usize) -> BTreeMap<String, Vec<String>> {
    let mut tree = None;
    let mut count: HashMap<String, u32> = HashMap::new();
    let mut last: VecDeque<String> = VecDeque::new();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(n, _)| n % parts == part) {
        for word in line.split(' ') {
            insert(&mut tree, word, number as u32);
            *count.entry(word.to_uppercase()).or_default() += 1;
            last.push_back(format!("{number}:{word}"));
            if last.len() > 1000 {
                let old = last.pop_front().unwrap();
                let entry = found.entry(old[old.len() - 2..].to_string()).or_default();
                entry.push(old);
                if entry.len() > 40 { entry.drain(..20); }
            }
        }
    }
    found.insert("depth".into(), vec![depth(&tree).to_string(), count.len().to_string()]);
    found
}

fn main() {
    let given: Vec<String> = env::args().collect();
    let text = Arc::new(fs::read_to_string(&given[1]).unwrap());
    let threads: usize = given[2].parse().unwrap();
    let (sender, receiver) = mpsc::channel();
    let workers: Vec<_> = (0..threads).map(|part| {
        let (text, sender) = (text.clone(), sender.clone());
        thread::spawn(move || sender.send((part, work(&text, part, threads))).unwrap())
    }).collect();
    drop(sender);
    let all: BTreeMap<usize, _> = receiver.iter().collect();
    for worker in workers { worker.join().unwrap(); }
    for (part, found) in all {
        println!("{part} {} {} {}", found.len(), found.values().map(Vec::len).sum::<usize>(), found["depth"].join(" "));
    }
}
