from loader.order_quality import *
