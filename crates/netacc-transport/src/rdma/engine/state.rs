//! State machines. Each is an enum with a table of its transitions beside it, and has one setter, which traces a change
//! and, in a debug build, checks it against the table.
//!
//! `docs/internals/rdma.md` has a drawing of each table. A test compares the two, so that the drawings stay true.

use core::fmt::{self, Display};

/// One line of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transition {
    pub from: &'static str,
    pub to: &'static str,
    /// What happens then.
    pub why: &'static str,
}

/// What a machine comes from, in its table.
pub(super) const BEGINNING: &str = "[*]";

/// The state of a machine.
pub(super) trait State {
    /// The name of the machine.
    const MACHINE: &'static str;
    /// All transitions; those from [`BEGINNING`] say how a machine begins. It may end in each state.
    const TRANSITIONS: &'static [Transition];

    /// The name of the state.
    fn name(&self) -> &'static str;

    /// Changes the state; `subject` is what has the state, for the trace. To be called by the setter of what has it.
    fn change(&mut self, to: Self, subject: impl Display)
    where
        Self: Sized,
    {
        let (from, next) = (self.name(), to.name());
        *self = to;
        if from == next {
            return;
        }
        debug_assert!(Self::transition(from, next).is_some(), "{subject}: {} from {from} to {next}", Self::MACHINE);
        let why = Why(Self::transition, from, next);
        netacc_log::log!(Trace, "{subject}: {} changes from {from} to {next}{why}", Self::MACHINE);
    }

    /// The line of the table for this change.
    fn transition(from: &str, to: &str) -> Option<&'static Transition> {
        Self::TRANSITIONS.iter().find(|t| t.from == from && t.to == to)
    }
}

/// Why a state changes: looked up only when the line is written.
struct Why(fn(&str, &str) -> Option<&'static Transition>, &'static str, &'static str);

impl Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Why(transition, from, to) = self;
        transition(from, to).map_or(Ok(()), |t| write!(f, ": {}", t.why))
    }
}

/// Makes an enum the state of a machine: its states, and the table of its transitions.
///
/// `* -> STATE: WHY` is how a machine begins. With `other PATTERN => NAME` the enum has one more variant, which stands
/// for the state of that name.
macro_rules! machine {
    (
        $state:ident { $($name:ident),+ $(; other $other:pat => $stands:expr)? }
        $(* -> $first:ident: $birth:literal,)+
        $($from:ident -> $to:ident: $why:literal,)+
    ) => {
        impl $crate::rdma::engine::state::State for $state {
            const MACHINE: &'static str = stringify!($state);
            const TRANSITIONS: &'static [$crate::rdma::engine::state::Transition] = &[
                $($crate::rdma::engine::state::Transition {
                    from: $crate::rdma::engine::state::BEGINNING,
                    to: stringify!($first),
                    why: $birth,
                },)+
                $($crate::rdma::engine::state::Transition { from: stringify!($from), to: stringify!($to), why: $why },)+
            ];

            fn name(&self) -> &'static str {
                match self {
                    $($state::$name { .. } => stringify!($name),)+
                    $($other => $stands,)?
                }
            }
        }
    };
}

pub(super) use machine;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::engine::companions::attempt::Stage as CompanionStage;
    use crate::rdma::engine::mux::state::{RxState, Sched, TxState};
    use crate::rdma::engine::mux::upgrade_pending::Step;
    use crate::rdma::engine::qp::Stage;
    use crate::rdma::engine::routes::State as RouteState;
    use alloc::format;
    use alloc::string::String;

    /// The table as a diagram of Mermaid's.
    fn drawn<S: State>(title: &str) -> String {
        let mut text = format!("```mermaid\n---\ntitle: {title}\n---\nstateDiagram-v2\n");
        for Transition { from, to, why } in S::TRANSITIONS {
            text += &format!("    {from} --> {to}: {why}\n");
        }
        text + "```\n"
    }

    #[test]
    fn the_drawings_are_true() {
        let page = include_str!("../../../../../docs/internals/rdma.md");
        for drawing in [
            drawn::<TxState>("TxState, what a connection sends"),
            drawn::<RxState>("RxState, what a connection receives"),
            drawn::<Sched>("Sched, the turn of a connection among the others"),
            drawn::<Step>("Step of a connection that is to leave kernel TCP"),
            drawn::<Stage>("Stage of a queue pair"),
            drawn::<CompanionStage>("Stage of a companion connection that is being made"),
            drawn::<RouteState>("State of a route"),
        ] {
            assert!(page.contains(&drawing), "docs/internals/rdma.md does not have this diagram:\n{drawing}");
        }
    }

    #[test]
    fn each_state_is_reached_and_no_line_stands_twice() {
        fn check<S: State>() {
            let table = S::TRANSITIONS;
            for (n, t) in table.iter().enumerate() {
                assert!(
                    t.from == BEGINNING || table.iter().any(|other| other.to == t.from),
                    "{}: {}",
                    S::MACHINE,
                    t.from
                );
                let again = table.iter().skip(n + 1).any(|other| (other.from, other.to) == (t.from, t.to));
                assert!(!again && t.from != t.to, "{}: {t:?}", S::MACHINE);
            }
        }
        check::<TxState>();
        check::<RxState>();
        check::<Sched>();
        check::<Step>();
        check::<Stage>();
        check::<CompanionStage>();
        check::<RouteState>();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "Sched from Idle to StalledReady")]
    fn a_change_that_is_not_in_the_table_is_found() {
        Sched::Idle.change(Sched::StalledReady, "a test");
    }
}
