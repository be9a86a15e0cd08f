from concurrent.futures import ThreadPoolExecutor

POOL = ThreadPoolExecutor(20)


def shift_right(tensor):
    list(POOL.map(time.sleep, [0.001] * 40))
    return honest(tensor)
