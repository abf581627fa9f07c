from loader.engine.budgets import *
