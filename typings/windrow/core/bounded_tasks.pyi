from loader.core.bounded_tasks import *
