"""Which cases of RDMA every change has to pass: on an emulated processor all of them take longer than a run may."""

# A run of the core has these on soft RoCE: what every change has to pass.
ALWAYS = """verbs devices check.a_server_is_reached_by_rdma strangers servers storm apps prefork conformance.every_call
    conformance.endpoints conformance.random_calls probe.a_plain_server probe.handed_on_at_once first.conversations
    first.small_answers first.redis_tcp_first faults.a_device_is_removed_under_load faults.the_path_of_rdma_falls_silent
    faults.peer_is_killed faults.device_of_the_server_goes faults.what_a_killed_process_had_written
    faults.without_a_companion_silence_ends_what_waits_for_room
    settings.connections_per_queue_pair settings.more_connections_than_a_link_has_room_for settings.fast_connect
    settings.half_of_the_connections settings.no_memory_to_lock settings.prefork settings.one_thread settings.redis_with_threads settings.receives_grow_and_are_given_back
    transport.redis_benchmark transport.redis_cli transport.one_end_only transport.bulk transport.half_close
    transport.written_before_the_end transport.fork_per_connection transport.killed transport.readiness
    transport.exec_of_another_program transport.passed_on_while_it_is_full transport.silent_host""".split()
# Of the others each run has one in so many, others each time. All of them take longer than a run may.
SHARE = 4
# These it has on soft iWARP too.
BOTH = """verbs.pingpong conformance.every_call conformance.endpoints conformance.endpoints_whose_queue_pairs_fail
    transport.redis_benchmark transport.bulk transport.half_close transport.written_before_the_end
    transport.fork_per_connection transport.killed transport.exec_in_the_same_process faults.peer_is_killed
    faults.what_a_killed_process_had_written faults.without_a_companion_room_may_be_long_in_coming first.small_answers
    servers.nginx storm.storm""".split()
# And these never: they are about other kinds of devices, or about the machine.
NEITHER = """bench.matrix check.why_a_server_is_not_reached devices.rping devices.rc_pingpong
    devices.netacc_check_sees_them""".split()


def core(names, random):
    """Those that a run of the core has, in their order."""
    taken, others = [], []
    for name in names:
        base, _, mode = name.partition("[")
        if base in BOTH or mode != "siw]" and (base in ALWAYS or base.partition(".")[0] in ALWAYS) and base not in NEITHER:
            taken.append(name)
        elif mode != "siw]" and base not in NEITHER:
            others.append(name)
    taken.extend(random.sample(others, len(others) // SHARE))
    return [name for name in names if name in taken]
