"""All that raydist touches of TensorFlow's private parts, in a module for each subject.

Checked with TensorFlow 2.18 to 2.21; tests/training/test_tf_private.py fails when one is gone.
"""

from raydist.training.tf_private.attributes import (
    CONTAINERS as CONTAINERS,
    changed as changed,
    own_attributes as own_attributes,
    set_content as set_content,
)
from raydist.training.tf_private.collectives import (
    CollectiveCalls as CollectiveCalls,
    all_gather as all_gather,
    all_to_all as all_to_all,
    exchange_each_type as exchange_each_type,
    gather_sizes_in_loops as gather_sizes_in_loops,
    host_of as host_of,
    launcher_of as launcher_of,
    num_workers_of as num_workers_of,
    observe_collectives as observe_collectives,
)
from raydist.training.tf_private.coordination import (
    begin_anew as begin_anew,
    check_untouched as check_untouched,
    configure_coordination as configure_coordination,
    keep_mirrored_local as keep_mirrored_local,
    missing_parts as missing_parts,
    report_error_to_peers as report_error_to_peers,
    settled_devices as settled_devices,
    tell_workers as tell_workers,
    told_by_worker as told_by_worker,
)
from raydist.training.tf_private.coordinators import (
    call_registered as call_registered,
    is_fetched as is_fetched,
    per_worker_iterators as per_worker_iterators,
    register as register,
    remake as remake,
    spec_of as spec_of,
    traced_for_workers as traced_for_workers,
    worker_numbers as worker_numbers,
)
from raydist.training.tf_private.datasets import (
    DataFunction as DataFunction,
    FreedIterators as FreedIterators,
    PythonGenerator as PythonGenerator,
    Transformation as Transformation,
    functions_of as functions_of,
    generator_of as generator_of,
    input_of as input_of,
    inputs_of as inputs_of,
    is_of_data_workers as is_of_data_workers,
    is_out_of_order as is_out_of_order,
    moved as moved,
    name_of_transformation as name_of_transformation,
    nodes_of as nodes_of,
    parameter as parameter,
    reshuffles as reshuffles,
    transformation_of as transformation_of,
)
from raydist.training.tf_private.functions import (
    Timestamps as Timestamps,
    check_constant_rows as check_constant_rows,
    inline_functions as inline_functions,
    inlined_functions as inlined_functions,
    is_in_xla as is_in_xla,
    is_op_determinism_enabled as is_op_determinism_enabled,
    key_traces_by_replica as key_traces_by_replica,
    without_retracing_warnings as without_retracing_warnings,
)
from raydist.training.tf_private.graphs import (
    added_number as added_number,
    assigned_variables as assigned_variables,
    bodies_of as bodies_of,
    captured_by as captured_by,
    captured_variables as captured_variables,
    changed_variables as changed_variables,
    computes_same as computes_same,
    draws_by_own_seed as draws_by_own_seed,
    has_state as has_state,
    ops_behind as ops_behind,
    reads_any as reads_any,
    variables_named as variables_named,
    writers_of as writers_of,
)
from raydist.training.tf_private.preemption import (
    is_exit_of_handler as is_exit_of_handler,
    told_to_save as told_to_save,
)
from raydist.training.tf_private.program_scope import scope_of_program as scope_of_program
from raydist.training.tf_private.random_numbers import (
    RunSeed as RunSeed,
    constant_draws as constant_draws,
    draw_anew_in_each_pass as draw_anew_in_each_pass,
    eager_seeds as eager_seeds,
    global_random_variables as global_random_variables,
    outside_of_control_flow as outside_of_control_flow,
    set_eager_seeds as set_eager_seeds,
)
from raydist.training.tf_private.strategies import (
    REDUCED as REDUCED,
    CollectiveExtended as CollectiveExtended,
    MirroredVariable as MirroredVariable,
    as_one_of as as_one_of,
    create_mirrored_variable as create_mirrored_variable,
    default_strategy as default_strategy,
    is_default as is_default,
    is_in_replica as is_in_replica,
    is_in_update as is_in_update,
    made_in_scope as made_in_scope,
    meaning_over as meaning_over,
    outside_of_scopes as outside_of_scopes,
    prepare_replica_threads as prepare_replica_threads,
    regroup as regroup,
    select_replica as select_replica,
    spec_of_replica as spec_of_replica,
    update_context as update_context,
    update_regroup as update_regroup,
    updated_device as updated_device,
)
from raydist.training.tf_private.variables import (
    Read as Read,
    ShardedVariable as ShardedVariable,
    assign_of_first_replica as assign_of_first_replica,
    assign_sum as assign_sum,
    count_saves_alone as count_saves_alone,
    distributed as distributed,
    follow_synchronized as follow_synchronized,
    has_tangent as has_tangent,
    ids_of as ids_of,
    is_among as is_among,
    is_of_strategy as is_of_strategy,
    is_recording as is_recording,
    is_synchronized_on_read as is_synchronized_on_read,
    local_value as local_value,
    make_variables_convertible as make_variables_convertible,
    not_recording as not_recording,
    parts_of as parts_of,
    plain_variable as plain_variable,
    put_checkpoints as put_checkpoints,
    read_unseen as read_unseen,
    recorded_read as recorded_read,
    replace_reads as replace_reads,
)
from raydist.training.tf_private.without_effects import WithoutEffects as WithoutEffects
from raydist.training.tf_private.worker_slots import (
    WorkerSlots as WorkerSlots,
    members_of as members_of,
    num_members as num_members,
    num_present as num_present,
    wait_for_members as wait_for_members,
)
