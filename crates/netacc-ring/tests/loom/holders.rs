//! Models of a connection that several processes of one side hold after a fork, and that the last of them uses alone
//! again. Threads stand for processes.

use crate::model;
use crate::pipe::*;
use loom::sync::Arc;
use loom::thread;
use netacc_ring::sync::*;
use netacc_ring::*;

/// The number in the place of a sleeping thread that stands for a byte on the liveness socket.
const BYTE: u32 = u32::MAX;

/// A side of a connection after a fork: its count, and its ring for writing with the word of the process whose turn it is.
struct Side {
    holders: HoldersWord,
    owner: AtomicU32,
    pipe: Pipe,
}

// SAFETY: threads share only what a pipe lets them share, and atomics.
unsafe impl Sync for Side {}
// SAFETY: threads share only what a pipe lets them share, and atomics.
unsafe impl Send for Side {}

const FIRST: u64 = 1;

fn forked() -> Side {
    let side = Side { holders: HoldersWord::default(), owner: AtomicU32::default(), pipe: Pipe::new() };
    assert!(side.holders.replace(side.holders.look(), side.holders.look().taken()));
    side
}

/// The private cursor of one process.
struct Process<'a> {
    side: &'a Side,
    tx: Producer,
}

impl Process<'_> {
    /// Writes a byte whose value is its position, without turns.
    fn write(&self) {
        let pipe = &self.side.pipe;
        self.tx.prepare(&pipe.data, &pipe.room, 1, |extent| extent).unwrap();
        let chunk = self.tx.chunk(&pipe.area(), &pipe.room, 1).unwrap().expect("the window has room");
        let at = self.tx.position();
        // loom objects if two processes write to one place.
        pipe.cells(chunk)[0].with_mut(|p| unsafe { *p = u8::try_from(at).unwrap() });
        self.tx.advance(1);
        self.tx.publish(&pipe.data);
    }

    fn resync(&self) {
        self.tx.resync(&self.side.pipe.data, &self.side.pipe.room).unwrap();
    }

    /// Writes a byte in this process's turn. False: another one has the turn.
    fn write_in_turn(&self, me: u32) -> bool {
        let owner = &self.side.owner;
        if owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        self.resync();
        self.write();
        owner.store(0, Ordering::Release);
        true
    }

    /// Writes a byte as the endpoint does: without turns once this process is the last.
    fn write_as_counted(&self, me: u32) -> bool {
        if self.side.holders.look().number() == 1 {
            self.resync();
            self.write();
            return true;
        }
        self.write_in_turn(me)
    }
}

fn process(side: &Side) -> Process<'_> {
    let process = Process { side, tx: Producer::default() };
    process.resync();
    process
}

/// A child goes on alone where its parent has ended: no byte is lost, and none is written over.
///
/// Mutations: a process counting itself out before its last write; `HoldersWord::replace` with `Acquire`; `look` with
/// `Relaxed`; going on without `resync`; being alone with two holders.
#[test]
fn the_last_holder_goes_on_where_the_others_have_ended() {
    model(3, || {
        let side = Arc::new(forked());
        let parents = side.clone();
        let parent = thread::spawn(move || {
            let written = u8::from(process(&parents).write_in_turn(1));
            assert!(parents.holders.less(FIRST));
            written
        });
        let child = process(&side);
        let mut written = 0;
        for _ in 0..2 {
            written += u8::from(child.write_as_counted(2));
        }
        written += parent.join().unwrap();
        let mut at = 0;
        assert_eq!(side.pipe.read(&mut at, 4), usize::from(written));
        assert_eq!(at, written);
    });
}

/// A process that forks again is no longer alone before its child exists, whatever the parent does meanwhile.
///
/// Mutation: `more` after the child has begun.
#[test]
fn a_further_child_is_counted_before_it_exists() {
    model(2, || {
        let side = Arc::new(forked());
        let parents = side.clone();
        let parent = thread::spawn(move || assert!(parents.holders.less(FIRST)));
        assert!(side.holders.more(FIRST));
        let its = side.clone();
        let grandchild = thread::spawn(move || {
            let alone = its.holders.look().number() == 1;
            assert!(!alone, "the child, which forked it, still has the connection");
            let written = u8::from(process(&its).write_as_counted(3));
            assert!(its.holders.less(FIRST));
            written
        });
        let mut written = u8::from(process(&side).write_as_counted(2));
        written += grandchild.join().unwrap();
        parent.join().unwrap();
        assert_eq!(side.holders.look().number(), 1);
        let mut at = 0;
        assert_eq!(side.pipe.read(&mut at, 4), usize::from(written));
    });
}

/// A thread of a process that has the connection alone sleeps without steps. The peer's bytes wake it, whatever another
/// process has left in the place of the waiting thread; and if its process forks, it is woken to sleep in steps, since the
/// new process may take the byte that was meant for it.
///
/// Mutations: the thread looking whether the connection is shared before it joins the others, or after that without the
/// fence; the forking thread looking for sleepers before it has set the mark, or without its fence; a registration that
/// leaves the number of another process in its place; the thread looking at the ring before it registers.
#[test]
fn a_sleeper_of_a_sole_heir_is_woken() {
    model(3, || {
        let p = Arc::new((Pipe::new(), AtomicU32::default(), AtomicU32::default()));
        // A thread of a process that has closed the connection was registered.
        p.0.reader.rx_waiter.swap(9, Ordering::SeqCst);
        let (q, r) = (p.clone(), p.clone());
        let peer = thread::spawn(move || {
            assert_eq!(q.0.write(&mut 0, 1), 1);
            notify_data(&q.0.reader, 1, |_| None).thread
        });
        let forking = thread::spawn(move || {
            let (_, shared, joined) = &*r;
            shared.fetch_or(1, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            joined.load(Ordering::SeqCst) != 0 && joined.swap(0, Ordering::SeqCst) != 0
        });
        let (pipe, shared, joined) = &*p;
        joined.swap(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let sole = shared.load(Ordering::Acquire) == 0;
        if sole {
            pipe.reader.rx_waiter.swap(BYTE, Ordering::SeqCst);
            fence(Ordering::SeqCst);
        }
        let sleeps = sole && !pipe.rx.readable(&pipe.data);
        let (byte, woken) = (peer.join().unwrap() == BYTE, forking.join().unwrap());
        assert!(!sleeps || byte, "the peer's byte wakes nobody");
        assert!(!sleeps || woken, "a thread sleeps without steps beside another process");
    });
}
