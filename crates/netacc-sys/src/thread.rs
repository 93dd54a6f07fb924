//! Threads of ours that use libc: made by pthread_create(3), found by name.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use crate::{linker, raw, symbol};
use alloc::boxed::Box;
use core::ffi::{CStr, c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

/// What a thread does.
type Work = Box<dyn FnOnce() + Send>;

/// A function of POSIX threads. Before glibc 2.34 they are in a library of their own, which the program need not have.
fn function(name: &CStr) -> Result<*mut c_void> {
    let mut found = symbol::any(name);
    if found.is_null() {
        let library = linker::open(c"libpthread.so.0", libc::RTLD_NOW);
        if !library.is_null() {
            // SAFETY: opened just now.
            found = unsafe { linker::symbol(library, name) };
        }
    }
    if found.is_null() { Err(Errno::NOSYS) } else { Ok(found) }
}

/// A thread that was started.
#[derive(Debug)]
pub struct Thread(libc::pthread_t);

/// Starts a thread that has this name in ps(1), at most 15 bytes, and `stack` bytes of stack, or as many as libc gives
/// where it wants more than that.
pub fn spawn(name: &str, stack: usize, work: impl FnOnce() + Send + 'static) -> Result<Thread> {
    let mut label = [0u8; 16];
    label.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    let work: Work = Box::new(move || {
        raw::set_name(&label);
        work();
    });
    let argument = Box::into_raw(Box::new(work));
    // SAFETY: the thread, if it is made, takes the box.
    let made = unsafe { create(Some(stack), argument.cast()) };
    let made = match made {
        // SAFETY: no thread was made, so the box is still ours to give.
        Err(Errno::INVAL) => unsafe { create(None, argument.cast()) },
        made => made,
    };
    made.inspect_err(|_| {
        // SAFETY: no thread was made.
        drop(unsafe { Box::from_raw(argument) });
    })
}

/// # Safety
/// `argument` is a box of [`Work`], which the thread takes if it is made.
unsafe fn create(stack: Option<usize>, argument: *mut c_void) -> Result<Thread> {
    type Attributes = MaybeUninit<libc::pthread_attr_t>;
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    let create = function(c"pthread_create")?;
    let (init, size, destroy) =
        (function(c"pthread_attr_init")?, function(c"pthread_attr_setstacksize")?, function(c"pthread_attr_destroy")?);
    let mut attributes = Attributes::zeroed();
    let mut thread = 0;
    // SAFETY: libc's functions of these signatures.
    let error = unsafe {
        let init: unsafe extern "C" fn(*mut Attributes) -> c_int = core::mem::transmute(init);
        let size: unsafe extern "C" fn(*mut Attributes, usize) -> c_int = core::mem::transmute(size);
        let destroy: unsafe extern "C" fn(*mut Attributes) -> c_int = core::mem::transmute(destroy);
        let create: unsafe extern "C" fn(*mut libc::pthread_t, *const Attributes, Start, *mut c_void) -> c_int =
            core::mem::transmute(create);
        match stack {
            None => create(&raw mut thread, ptr::null(), begin, argument),
            Some(bytes) => {
                let mut error = init(&raw mut attributes);
                if error == 0 {
                    error = size(&raw mut attributes, bytes);
                    if error == 0 {
                        error = create(&raw mut thread, &raw const attributes, begin, argument);
                    }
                    destroy(&raw mut attributes);
                }
                error
            }
        }
    };
    if error == 0 { Ok(Thread(thread)) } else { Err(Errno(error)) }
}

extern "C" fn begin(argument: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` gave the box to this thread.
    let work = unsafe { Box::from_raw(argument.cast::<Work>()) };
    work();
    ptr::null_mut()
}

impl Thread {
    /// Waits for its end.
    pub fn join(self) {
        if let Ok(join) = function(c"pthread_join") {
            // SAFETY: libc's function of this signature, and a thread that nobody else joins or detaches.
            unsafe {
                let join: unsafe extern "C" fn(libc::pthread_t, *mut *mut c_void) -> c_int = core::mem::transmute(join);
                join(self.0, ptr::null_mut());
            }
        }
        core::mem::forget(self);
    }
}

impl Drop for Thread {
    /// What the thread leaves goes with it.
    fn drop(&mut self) {
        if let Ok(detach) = function(c"pthread_detach") {
            // SAFETY: libc's function of this signature, and a thread that nobody else joins or detaches.
            unsafe {
                let detach: unsafe extern "C" fn(libc::pthread_t) -> c_int = core::mem::transmute(detach);
                detach(self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_has_its_name_and_ends() {
        let (send, receive) = mpsc::channel();
        let thread = spawn("a-name-that-is-too-long", 1, move || {
            send.send(std::fs::read_to_string("/proc/thread-self/comm").unwrap()).unwrap();
        });
        // Too small a stack is as good as none that was named.
        assert_eq!(receive.recv().unwrap(), "a-name-that-is-\n");
        thread.unwrap().join();
        drop(spawn("detached", 256 * 1024, || {}).unwrap());
    }
}
