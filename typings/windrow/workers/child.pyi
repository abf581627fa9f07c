from loader.workers.child import *
