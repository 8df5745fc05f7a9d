"""What runs on Ray and on its hosts. It starts and stops processes; the controller decides which."""
