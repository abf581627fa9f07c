from loader.core.threads import *
