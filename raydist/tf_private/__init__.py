"""All that raydist touches of TensorFlow's private parts, in a module for each subject.

Checked with TensorFlow 2.18 to 2.21; tests/training/test_tf_private.py fails when one is gone.
"""

from raydist.tf_private.attributes import *
from raydist.tf_private.collectives import *
from raydist.tf_private.coordination import *
from raydist.tf_private.coordinators import *
from raydist.tf_private.datasets import *
from raydist.tf_private.functions import *
from raydist.tf_private.graphs import *
from raydist.tf_private.preemption import *
from raydist.tf_private.program_scope import *
from raydist.tf_private.random_numbers import *
from raydist.tf_private.strategies import *
from raydist.tf_private.variables import *
from raydist.tf_private.without_effects import *
from raydist.tf_private.worker_slots import *
