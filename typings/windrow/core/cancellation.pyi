from loader.core.cancellation import *
