"""Starts a command on a simulated GPU: python -m fakecuda COMMAND …"""

import os
import sys
import tempfile

import fakecuda

environment = fakecuda.environment(tempfile.mkdtemp(), gpus=1, mib=4000, FAKE_SLEEP_MAX="100")
os.execvpe(sys.argv[1], sys.argv[1:], environment)
