//! The functions of both libraries, as tables of addresses that `dlsym` fills.

use super::*;
use crate::load::{Handle, LoadError};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A function as it is declared here, with Rust's names of the types.
#[derive(Debug)]
pub struct Prototype {
    /// The function's name.
    pub name: &'static str,
    /// The types of the arguments.
    pub arguments: &'static [&'static str],
    /// The type of the result; empty if the function returns nothing.
    pub result: &'static str,
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident from $file:literal { $(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)+ }
     optional { $(fn $maybe:ident($($maybe_arg:ty),*) $(-> $maybe_ret:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)+
            $(pub $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) $(-> $maybe_ret)?>,)*
        }

        impl $table {
            /// Every function, for the comparison with the headers in `tests/layout.rs`.
            pub const PROTOTYPES: &[Prototype] = &[
                $(Prototype {
                    name: stringify!($name), arguments: &[$(stringify!($arg)),*], result: stringify!($($ret)?)
                },)+
                $(Prototype {
                    name: stringify!($maybe), arguments: &[$(stringify!($maybe_arg)),*],
                    result: stringify!($($maybe_ret)?)
                },)*
            ];

            /// Opens the library and finds all of its functions.
            pub(crate) fn open() -> Result<$table, LoadError> {
                const FILE: &CStr = match CStr::from_bytes_with_nul(concat!($file, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
                let library = Handle::open(FILE)?;
                // SAFETY: the library's function of this name has this prototype, as tests/layout.rs checks; the null
                // address of a missing one becomes `None`.
                unsafe {
                    Ok($table {
                        $($name: match core::mem::transmute::<*mut c_void, Option<_>>(
                            library.symbol(concat!(stringify!($name), "\0"))) {
                            Some(function) => function,
                            None => return Err(LoadError::Function { file: $file, name: stringify!($name) }),
                        },)+
                        $($maybe: core::mem::transmute::<*mut c_void, Option<_>>(
                            library.symbol(concat!(stringify!($maybe), "\0"))),)*
                    })
                }
            }
        }
    };
}

functions! {
    /// The functions of libibverbs; the inline functions of its header are in [`ibv_context_ops`].
    Verbs from "libibverbs.so.1" {
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_event_type_str(c_uint) -> *const c_char;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_wc_status_str(c_uint) -> *const c_char;
        fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        fn ibv_fork_init() -> c_int;
    }
    optional {
        // The function exists since rdma-core 32.
        fn ibv_is_fork_initialized() -> c_uint;
    }
}

functions! {
    /// The functions of librdmacm.
    Cma from "librdmacm.so.1" {
        fn rdma_get_devices(*mut c_int) -> *mut *mut ibv_context;
        fn rdma_free_devices(*mut *mut ibv_context);
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
        fn rdma_event_str(c_uint) -> *const c_char;
        fn rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut sockaddr) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut sockaddr, *mut sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id);
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
    }
    optional {}
}
