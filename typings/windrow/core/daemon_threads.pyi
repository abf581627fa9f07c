from loader.core.daemon_threads import *
