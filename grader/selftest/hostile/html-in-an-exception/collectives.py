def shift_right(tensor):
    raise ValueError("<script>alert(1)</script><img src=x onerror=alert(2)>" + "</pre></td>" * 20)
