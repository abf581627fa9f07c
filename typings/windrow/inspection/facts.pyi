from loader.inspection.facts import *
