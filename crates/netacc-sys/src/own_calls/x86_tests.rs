use super::*;

fn name(code: &[u8]) -> Option<&'static str> {
    find(code).map(|call| call.name)
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const EPOLL_PWAIT: [u8; 5] = [0xb8, 0x19, 1, 0, 0];

fn between(before: &[u8], middle: &[u8]) -> Option<&'static str> {
    name(&[&[0xcc; 60][..], before, middle, &SYSCALL[..], &[0xc3; 60]].concat())
}

#[test]
fn number_and_instruction() {
    assert_eq!(between(&EPOLL_PWAIT, &[]), Some("epoll_pwait"));
    // As rustix has it: mov %rcx,%r10; xor %r8d,%r8d.
    assert_eq!(between(&EPOLL_PWAIT, &[0x49, 0x89, 0xca, 0x45, 0x31, 0xc0]), Some("epoll_pwait"));
    // mov $232,%eax; lea 0x28(%rsp),%rsi; mov $-1,%r10.
    let middle = [0x48, 0x8d, 0x74, 0x24, 0x28, 0x49, 0xc7, 0xc2, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(between(&[0xb8, 232, 0, 0, 0], &middle), Some("epoll_wait"));
    // mov $441,%rax with a sign, push and pop, through another register.
    assert_eq!(between(&[0x48, 0xc7, 0xc0, 0xb9, 1, 0, 0], &[]), Some("epoll_pwait2"));
    assert_eq!(between(&[0x6a, 49], &[0x58]), Some("bind"));
    assert_eq!(between(&[0x41, 0xbc, 0x20, 1, 0, 0], &[0x44, 0x89, 0xe0]), Some("accept4"));
    assert_eq!(between(&[0xb8, 0xa9, 1, 0, 0], &[]), Some("io_uring_setup"));
    assert_eq!(find(&[0xb8, 0xa9, 1, 0, 0, 0x0f, 5]).map(|c| c.kind), Some(super::super::Kind::IoUring));
}

#[test]
fn other_numbers_and_other_code() {
    assert_eq!(between(&[0xb8, 1, 0, 0, 0], &[]), None, "write");
    // exit(42): mov $42,%edi; mov $60,%eax.
    assert_eq!(between(&[0xbf, 42, 0, 0, 0], &[0xb8, 60, 0, 0, 0]), None);
    assert_eq!(between(&EPOLL_PWAIT, &[0xb8, 1, 0, 0, 0]), None, "the last number counts");
    assert_eq!(between(&EPOLL_PWAIT, &[0x31, 0xc0]), None, "read");
    assert_eq!(between(&EPOLL_PWAIT, &[0xc3]), None, "another function");
    assert_eq!(between(&EPOLL_PWAIT, &[0xe8, 0, 0, 0, 0]), None, "a call between");
    assert_eq!(between(&EPOLL_PWAIT, &[0x8b, 0x45, 0xf8]), None, "a number from memory");
    // The two bytes lie in a constant: mov $0x50f,%ecx.
    assert_eq!(name(&[&EPOLL_PWAIT[..], &[0xb9, 0x0f, 5, 0, 0, 0xc3]].concat()), None);
    assert_eq!(name(&[0x0f, 5]), None);
    assert_eq!(name(&[]), None);
    // Cut off anywhere, it is read to its end and no farther.
    let whole = [&EPOLL_PWAIT[..], &[0x49, 0x89, 0xca], &SYSCALL[..]].concat();
    for length in 0..whole.len() {
        assert_eq!(name(&whole[..length]), None);
    }
}

/// A call from the end of `before` to `wrapper`, which follows after one byte.
fn calling(number: u16, wrapper: &[u8]) -> Option<&'static str> {
    let [a, b] = number.to_le_bytes();
    // mov $number,%edi; call +1; ret.
    name(&[&[0xbf, a, b, 0, 0, 0xe8, 1, 0, 0, 0, 0xc3][..], wrapper, &[0xc3]].concat())
}

#[test]
fn number_handed_to_a_function() {
    // mov %rdi,%rax; mov %rsi,%rdi; syscall.
    let optimised = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f, 5];
    // mov %rdi,-8(%rbp); mov -8(%rbp),%rax; syscall.
    let plain = [0x48, 0x89, 0x7d, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0x0f, 5];
    for wrapper in [&optimised[..], &plain] {
        assert_eq!(calling(281, wrapper), Some("epoll_pwait"));
        assert_eq!(calling(425, wrapper), Some("io_uring_setup"));
        assert_eq!(calling(1, wrapper), None, "write");
    }
    // exit(42): mov $60,%eax; syscall. And a function of another library, whose name is not known here.
    assert_eq!(calling(42, &[0xb8, 60, 0, 0, 0, 0x0f, 5]), None);
    let stub = [0xff, 0x25, 0, 0, 0, 0, 0x48, 0x89, 0xf8, 0x0f, 5];
    assert_eq!(calling(425, &stub), None, "libc's syscall");
}

#[test]
fn numbers_that_belong_together() {
    // Debug builds of rustix: a function returns its argument, another one makes the call.
    let identity = [0x89, 0xf8, 0xc3];
    let wrapper = [0x48, 0x8b, 0x44, 0x24, 0x20, 0x0f, 5, 0xc3];
    let call = |number: u16, at: usize| {
        let [a, b] = number.to_le_bytes();
        let by = u8::try_from(-(i16::try_from(at).unwrap() + 10))
            .unwrap_or_else(|_| i8::try_from(-(i32::try_from(at).unwrap() + 10)).unwrap().cast_unsigned());
        vec![0xbf, a, b, 0, 0, 0xe8, by, 0xff, 0xff, 0xff]
    };
    let head = [&identity[..], &wrapper].concat();
    let both = [head.clone(), call(233, head.len()), call(281, head.len() + 10)].concat();
    assert_eq!(name(&both), Some("epoll_pwait"));
    let one = [head.clone(), call(281, head.len())].concat();
    assert_eq!(name(&one), None, "an argument like any other");
}
