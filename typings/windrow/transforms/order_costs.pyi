from transforms.order_costs import *
