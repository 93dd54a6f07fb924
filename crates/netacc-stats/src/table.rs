//! The macro that defines every enumeration that is stored in the page.

/// Defines a `u32` enumeration from a table of `Variant = number, "name"`.
///
/// Numbers are part of the page's layout: rows may be added, never renumbered.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        pub enum $ty:ident {
            $( $(#[$vmeta:meta])* $variant:ident = $num:literal, $name:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $ty {
            $( $(#[$vmeta])* $variant = $num, )+
        }

        impl $ty {
            /// Every value, in the order of the table.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The short name shown to users.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )+ }
            }

            /// The value stored as `raw`, or `None` for a number that this
            /// version does not know.
            #[must_use]
            pub const fn from_u32(raw: u32) -> Option<Self> {
                match raw { $( $num => Some(Self::$variant), )+ _ => None }
            }
        }

        impl core::fmt::Display for $ty {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(crate) use numbered;
