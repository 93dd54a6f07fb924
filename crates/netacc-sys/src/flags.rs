//! Flags that share one word.

/// Constants with a bit of a `u32` each, in the order in which they stand: no two can have the same bit, and one that
/// finds no room in the word does not compile. For words of the process alone, since a bit changes its place with the
/// list.
#[macro_export]
macro_rules! flags {
    ($bits:ident: $($(#[$about:meta])* $vis:vis const $name:ident;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the flags")]
        enum $bits {
            $($name,)*
        }
        $($(#[$about])* $vis const $name: u32 = 1 << $bits::$name as u32;)*
    };
}

#[cfg(test)]
mod tests {
    flags! { Bit:
        /// The first.
        const ONE;
        const TWO;
        const THREE;
    }

    #[test]
    fn each_has_a_bit_of_its_own() {
        assert_eq!([ONE, TWO, THREE], [1, 2, 4]);
    }
}
