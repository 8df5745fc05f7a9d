"""What operations of TensorFlow do, as far as raydist asks: sets of the names in its registry.

The modules that follow a graph ask these, and have rules of their own for single operations.
"""

from __future__ import annotations

from collections.abc import Mapping

# What calls functions that were traced: once, in one of several ways, again and again.
CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
CONDITIONS = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
LOOPS = frozenset(("While", "StatelessWhile"))

# Calls Python. TensorFlow knows of no state of the stateless one.
PYTHON = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))

# The first input is the variable, one of the others its new value.
ASSIGNMENTS = frozenset(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceScatterUpdate ResourceScatterAdd "
    "ResourceScatterSub ResourceStridedSliceAssign".split()
)
# The value, or a part of it, of a variable; or which one.
READS = frozenset(("ReadVariableOp", "ResourceGather", "VarHandleOp"))
# TensorFlow marks these as stateful, but they only check, or call functions, whose operations are looked at
# too.
_CHECKS_AND_CALLS = frozenset(
    "Assert CheckNumerics CheckNumericsV2 Placeholder StatefulPartitionedCall If While Case".split()
)
# Those, and what only reads.
_READING = _CHECKS_AND_CALLS | frozenset(
    "ReadVariableOp _ReadVariablesOp ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp "
    "LookupTableFind LookupTableFindV2 LookupTableSize LookupTableSizeV2 LookupTableExport "
    "LookupTableExportV2".split()
)
_TENSOR_ARRAYS = frozenset(
    "TensorArrayV3 TensorArrayReadV3 TensorArrayWriteV3 TensorArrayGatherV3 TensorArrayScatterV3 "
    "TensorArraySizeV3".split()
)
# Stateful to TensorFlow, but the inputs alone decide the outputs.
OF_INPUTS = _CHECKS_AND_CALLS | _TENSOR_ARRAYS | {"PrintV2"}
# What reads, or has a state of its own that nothing else sees: the outputs alone are computed with them.
WITHOUT_EFFECTS = (
    _READING
    | _TENSOR_ARRAYS
    | frozenset("Empty VarHandleOp VariableV2 HashTableV2 ParameterizedTruncatedNormal".split())
)
# What reads, prints or reads files: it gives the same when it runs again, in any worker.
REPEATABLE = _READING | {"Print", "PrintV2", "ReadFile", "MatchingFiles", "PlaceholderWithDefault"}

# Draws real numbers: from 0 to 1, or around 0; and whole numbers, with the position of the least among the
# inputs.
UNIFORM_DRAWS = frozenset(("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"))
NORMAL_DRAWS = frozenset(
    "RandomStandardNormal StatelessRandomNormal StatelessRandomNormalV2 TruncatedNormal "
    "StatelessTruncatedNormal StatelessTruncatedNormalV2".split()
)
INTEGER_DRAWS: Mapping[str, int] = {
    "RandomUniformInt": 1,
    "StatelessRandomUniformInt": 2,
    "StatelessRandomUniformIntV2": 4,
}
# Moves a generator on, and returns its state of before.
GENERATES = "RngReadAndSkip"
# The new value of the variable, which is the first input, is made of the one before.
ADDITIONS = frozenset(
    (GENERATES, *"AssignAddVariableOp AssignSubVariableOp ResourceScatterAdd ResourceScatterSub".split())
)
# Each replica draws other numbers by these, other than by a seed that all of them count alike.
UNEQUAL_DRAWS = frozenset(
    ("Multinomial", "RandomStandardNormal", "RandomUniform", "TruncatedNormal", GENERATES)
)

# Says how many examples there are, and nothing of them.
SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
# Has the size of its input, and nothing else of it.
LIKE = frozenset(("OnesLike", "ZerosLike"))
# The size of their outputs may be the number of examples.
SIZES_OF_BATCHES = frozenset(("Shape", "ShapeN", "Size", "IteratorGetNext", "OptionalGetValue"))
UNIQUE = frozenset(("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"))
# By operation, the output that has no element twice.
OUTPUT_OF_UNIQUE: Mapping[str, int] = {
    **dict.fromkeys(UNIQUE, 0),
    **dict.fromkeys(("SparseSegmentSumGradV2", "SparseSegmentMeanGradV2", "SparseSegmentSqrtNGradV2"), 1),
}
# The shape of the output depends on values.
SIZED = UNIQUE | frozenset(
    "Where DynamicPartition ListDiff RaggedRange SparseSlice StringSplitV2 NonMaxSuppressionV3".split()
)
# Which inputs are shapes or sizes.
SIZES_OF: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Reshape", "BroadcastTo", "Tile", "UnsortedSegmentSum", "EnsureShape"), (1, 2)),
    **dict.fromkeys(("Slice", "StridedSlice"), (1, 2, 3)),
    "StridedSliceGrad": (0, 1, 2, 3),
    **dict.fromkeys(("Fill", "Range", "BroadcastGradientArgs"), (0, 1, 2)),
    **dict.fromkeys(("Pad", "PadV2", "ScatterNd", "Sum", "Mean", "SplitV", "TensorListReserve"), (1, 2)),
}

# Gives the elements of the first input in their order: in another shape, or in any.
RESHAPES = frozenset(("Reshape", "ExpandDims", "Squeeze"))
SAME_ORDER = RESHAPES | {"Identity", "Cast", "StopGradient", "PreventGradient"}
# Gives some elements of the first input: by a condition or a range; each that is asked for, maybe again.
CHOICES = frozenset(("DynamicPartition", "StridedSlice", "Slice"))
GATHERS = frozenset(("Gather", "GatherV2"))
SHIFTS = frozenset(("AddV2", "Add", "Sub"))

# Linear in all inputs.
LINEAR = frozenset(
    "Identity IdentityN StopGradient PreventGradient CheckNumerics CheckNumericsV2 Snapshot EnsureShape Neg "
    "AddN AddV2 Add Sub Cast Reshape Squeeze ExpandDims Transpose Sum Pack Unpack Split SplitV ConcatV2 "
    "StridedSlice Slice StridedSliceGrad Pad Tile BroadcastTo Reverse ReverseV2 Roll Cumsum DiagPart "
    "MatrixBandPart MatrixDiagV3 MatrixDiagPartV3 MatrixSetDiagV3 Real Imag Conj Complex BiasAdd "
    "BiasAddGrad GatherV2 ScatterNd UnsortedSegmentSum SelectV2 Select Mean".split()
)
# Linear in each input, as long as the others do not depend on the batch; in the first one.
BILINEAR = frozenset("Mul MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum MulNoNan".split())
QUOTIENTS = frozenset(("RealDiv", "Div", "DivNoNan"))
# What clips gradients, or makes norms or signs of them.
NOT_LINEAR = frozenset(
    "L2Loss Square Sqrt Rsqrt Pow Abs Sign Minimum Maximum ClipByValue Select SelectV2".split()
)

# Computes each element of its output from those at the same place in its inputs.
ELEMENT_WISE = frozenset(
    "Abs Acos Add AddV2 Asin AsString Atan Atan2 BitwiseAnd BitwiseOr BitwiseXor Cast Ceil ClipByValue Cos "
    "Div DivNoNan Elu Equal Erf Exp Expm1 Floor FloorDiv FloorMod Greater GreaterEqual Identity Inv IsFinite "
    "IsInf IsNan LeftShift Less LessEqual Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul "
    "MulNoNan Neg NotEqual OnesLike Pow RealDiv Reciprocal Relu Relu6 RightShift Rint Round Rsqrt SelectV2 "
    "Sigmoid Sign Sin Softplus Sqrt Square SquaredDifference StaticRegexReplace StopGradient StringLength "
    "StringLower StringStrip StringToHashBucketFast StringToNumber StringUpper Sub Tan Tanh TruncateDiv "
    "TruncateMod Xlogy ZerosLike".split()
)
# Makes one of the elements along the axes that the second input names.
REDUCTIONS = frozenset("All Any ArgMax ArgMin Max Mean Min Prod ReduceJoin Sum".split())
# Orders what is in the last dimension. Compares elements, one by one.
ORDERS = frozenset(("TopK", "TopKV2"))
COMPARISONS = frozenset(("Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual"))
# Makes images of another size, each by itself.
RESIZES = frozenset(("ResizeArea", "ResizeBicubic", "ResizeBilinear", "ResizeNearestNeighbor"))


def draws(op_type: str) -> bool:
    """Whether an operation draws random numbers, from whatever seed."""
    return any(word in op_type for word in ("Random", "Multinomial", "TruncatedNormal", GENERATES))
