from loader.planned_by_lengths import *
