from loader.inspection_facts import *
